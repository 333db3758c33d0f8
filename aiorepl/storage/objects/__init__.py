"""Objects in S3, Google Cloud Storage and Azure, through obstore. The journal and the object sinks use this package.

- ``location`` names a store: its URL and its configuration.
- ``client`` makes the requests; ``stream`` sends an object while it is being made.
- ``errors`` translates errors; ``uploads`` aborts multipart uploads that nobody will complete.
"""
