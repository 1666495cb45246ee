"""The graph layer: dtypes, static shapes, graphs, scopes, and conversion to tensors."""
