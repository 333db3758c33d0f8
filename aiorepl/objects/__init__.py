"""Objects in S3, Google Cloud Storage and Azure, through obstore. The journal and the object sinks use this package.

``location`` is where objects are, with the store's configuration; ``client`` does the requests; ``stream`` sends an object
while it is made; ``errors`` translates what went
wrong; ``uploads`` aborts multipart uploads that nobody will complete.
"""
