"""Configurations of training jobs, as files of frameworks state them -> words and layout."""
