"""The models that are trained, the compact form that they read, and how one is shipped."""
