//! Where the decoder's ops run.
