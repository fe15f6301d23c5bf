"""Every kernel of a release, read with symbolic arguments: where its integers wrap."""
