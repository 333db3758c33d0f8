"""The data source ``aiorepl``: plans on the driver, reads the journal on executors."""
