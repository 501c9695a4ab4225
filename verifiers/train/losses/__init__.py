"""The policy loss, of small pieces: ratios, masks, surrogates, regularisers, normalisation, and what they report."""
