//! What a lane hands to its engine: one operation made of one or more requests.

use crate::error::Error;
use crate::priority::Priority;
use crate::request::{Op, Request};

/// Requests that one operation can be made of.
pub const MAX_MERGED: usize = 64;

/// One operation on the medium: `len` bytes at `offset`, scattered over `requests`.
#[derive(Debug)]
pub struct Operation {
    /// What is to be done.
    pub op: Op,
    /// The first byte; 0 for a flush.
    pub offset: u64,
    /// Number of bytes, the sum of the requests'; 0 for a flush.
    pub len: u64,
    /// The class whose permit it holds.
    pub priority: Priority,
    /// The requests in the order of their offsets, each beginning where the one before ends.
    pub requests: Requests,
}

impl Operation {
    /// Ends each request with `result`; an error is told to each with the range of its own.
    pub fn finish(self, result: Result<(), Error>) {
        match self.requests {
            Requests::One(request) => request.finish(result),
            Requests::Many(requests) => {
                for request in requests {
                    let range = (request.offset(), request.len());
                    request.finish(result.clone().map_err(|error| error.with_range(range)));
                }
            }
        }
    }

    /// Ends the requests of an operation that moved only its first `moved` bytes, and then failed
    /// with `error`: those that lie within them ended well.
    pub fn finish_short(self, moved: u64, error: &Error) {
        let mut left = moved;
        for request in self.requests {
            let range = (request.offset(), request.len());
            let whole = range.1 <= left && range.1 > 0;
            left = if whole { left - range.1 } else { 0 };
            request.finish(if whole { Ok(()) } else { Err(error.clone().with_range(range)) });
        }
    }
}

/// Requests of one operation; a single one needs no allocation.
#[derive(Debug)]
pub enum Requests {
    /// The usual.
    One(Request),
    /// At least two, at most [`MAX_MERGED`].
    Many(Vec<Request>),
}

impl Requests {
    /// The requests.
    pub fn as_slice(&self) -> &[Request] {
        match self {
            Self::One(request) => std::slice::from_ref(request),
            Self::Many(requests) => requests,
        }
    }

    pub(super) fn push(&mut self, request: Request) {
        match self {
            Self::Many(requests) => requests.push(request),
            Self::One(_) => {
                let Self::One(first) = std::mem::replace(self, Self::Many(Vec::new())) else {
                    unreachable!("matched")
                };
                *self = Self::Many(vec![first, request]);
            }
        }
    }

    /// Puts the requests from `ahead` on, which were found from high to low, before the others.
    pub(super) fn order(&mut self, ahead: usize) {
        if let Self::Many(requests) = self {
            requests[ahead..].reverse();
            requests.rotate_left(ahead);
        }
    }

    /// The requests, to change.
    pub fn as_mut_slice(&mut self) -> &mut [Request] {
        match self {
            Self::One(request) => std::slice::from_mut(request),
            Self::Many(requests) => requests,
        }
    }
}

impl IntoIterator for Requests {
    type Item = Request;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Request>, std::vec::IntoIter<Request>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, many) = match self {
            Self::One(request) => (Some(request), Vec::new()),
            Self::Many(requests) => (None, requests),
        };
        one.into_iter().chain(many)
    }
}
