"""The methods that users call: of a lake, of a collection, of its readers and writers."""
