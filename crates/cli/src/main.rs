//! Forebay on the command line.

fn main() {}
