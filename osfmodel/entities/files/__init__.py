"""Our own files: documents, bundled profiles, the short notation of plans."""
