//! Tests of the functions of C, by programs in C.

mod program;
