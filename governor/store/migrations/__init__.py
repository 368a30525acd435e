"""The history of the schema, packaged so that an installed governor can bring any older database up to date."""
