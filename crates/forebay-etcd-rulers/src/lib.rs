//! Nothing: the tests are all of it.
