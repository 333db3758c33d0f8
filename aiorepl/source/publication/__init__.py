"""Pictures of the publications in the catalog, and the differences between two of them."""
