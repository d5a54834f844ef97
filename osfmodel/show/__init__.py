"""Each result as document, text, page and picture, over forms that know no result; computes nothing."""
