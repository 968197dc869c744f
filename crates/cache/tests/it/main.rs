//! Integration tests of the cache, through its public interface.

mod basics;
