"""Our own files: documents, bundled profiles, measured runs, settings, the short notation of plans."""
