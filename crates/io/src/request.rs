//! Requests and their completions.
//!
//! A [`Request`] is a value that moves: from who makes it, through decorators, the queue and
//! the engine, to [`Request::finish`], which consumes it and hands its memory on in a
//! [`Completion`]. So a request ends exactly once: whoever has it must finish it, and nobody
//! else can.
//!
//! Invariant: a request that is dropped unfinished (by a panic) ends with an error rather than
//! never.

use std::fmt;

use forebay_base::arena::Buffer;
use forebay_base::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};

use crate::completion::{self, Callback, Layer, RequestEnd};
use crate::error::{Error, ErrorKind};
use crate::payload::{Payload, StableBytes};
use crate::priority::Priority;
use crate::roots::Hold;
use crate::waiter::{Pending, Waiter};

/// What is asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the buffer.
    Read,
    /// Store the bytes. Durable only after a flush that was submitted after the write completed.
    Write,
    /// Make durable every write that completed before the flush was submitted.
    Flush,
    /// The bytes are not needed any more: they read as zero, or as what they were, until
    /// written again.
    Discard,
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Discard];

    /// As counters and messages spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One operation on a device, with its memory and what is to be done when it has ended.
pub struct Request {
    op: Op,
    priority: Priority,
    offset: u64,
    len: u64,
    payload: Option<Payload>,
    // What its maker wants done; gone once finished.
    callback: Option<Callback>,
    // Its root, which hears of the end before `callback`.
    hold: Option<Hold>,
    // Who hears of the end before both.
    layers: Option<Layer>,
    handle: Option<Arc<HandleState>>,
    // Who waits for it, to be told where it is. `callback` has another reference, and goes later.
    waiter: Option<Arc<Waiter>>,
    // Whether its submitter may be kept until its end.
    inline_allowed: bool,
}

/// How a request ended.
#[derive(Debug)]
pub struct Completion {
    /// What was asked for.
    pub op: Op,
    /// The first byte.
    pub offset: u64,
    /// All of it happened, or why not. After a failed read the buffer's content is unspecified;
    /// after a failed write, each sector on the medium is the old or the new one, or damaged.
    pub result: Result<(), Error>,
    /// The request's memory, whatever the result.
    pub payload: Option<Payload>,
}

impl Completion {
    /// The buffer that was read into, or the error.
    ///
    /// # Errors
    /// The request's.
    ///
    /// # Panics
    /// If the request carried no buffer of its own.
    pub fn into_buffer(self) -> Result<Buffer, Error> {
        self.result?;
        Ok(self.payload.and_then(Payload::into_buffer).expect("the request had a buffer"))
    }

    /// A layer panicked: whatever it was to check is unchecked.
    pub(crate) fn fail_for_panic(&mut self) {
        if self.result.is_ok() {
            let text = "a layer over the request panicked, so its result cannot be trusted";
            let mut range = (self.offset, 0);
            // Memory of a user's own type may panic when it is asked.
            completion::catch_panic(|| {
                range.1 = self.payload.as_ref().map_or(0, |payload| payload.bytes().len() as u64);
            });
            self.result = Err(Error::new(ErrorKind::Device, self.op, &"?".into(), range, text));
        }
    }
}

impl Request {
    fn new(op: Op, priority: Priority, (offset, len): (u64, u64)) -> Self {
        let (payload, callback, hold, layers) = (None, None, None, None);
        let (handle, waiter) = (None, None);
        let inline_allowed = false;
        Self {
            op,
            priority,
            offset,
            len,
            payload,
            callback,
            hold,
            layers,
            handle,
            waiter,
            inline_allowed,
        }
    }

    /// Fills `buffer` from the bytes at `offset`. Priority [`SyncRead`](Priority::SyncRead),
    /// unless set otherwise.
    pub fn read(offset: u64, buffer: Buffer) -> Self {
        let mut request = Self::new(Op::Read, Priority::SyncRead, (offset, buffer.len() as u64));
        request.payload = Some(Payload::Owned(buffer));
        request
    }

    /// Stores `buffer` at `offset`. Priority [`AsyncWrite`](Priority::AsyncWrite), unless set
    /// otherwise.
    pub fn write(offset: u64, buffer: Buffer) -> Self {
        let mut request = Self::new(Op::Write, Priority::AsyncWrite, (offset, buffer.len() as u64));
        request.payload = Some(Payload::Owned(buffer));
        request
    }

    /// Stores bytes that others may read meanwhile. Priority as for [`write`](Self::write).
    pub fn write_shared(offset: u64, bytes: Box<dyn StableBytes>) -> Self {
        let len = bytes.bytes().len() as u64;
        let mut request = Self::new(Op::Write, Priority::AsyncWrite, (offset, len));
        request.payload = Some(Payload::Shared(bytes));
        request
    }

    /// Makes durable what has completed. Priority [`SyncWrite`](Priority::SyncWrite).
    pub fn flush() -> Self {
        Self::new(Op::Flush, Priority::SyncWrite, (0, 0))
    }

    /// Gives up `len` bytes at `offset`. Priority [`AsyncWrite`](Priority::AsyncWrite).
    pub fn discard(offset: u64, len: u64) -> Self {
        Self::new(Op::Discard, Priority::AsyncWrite, (offset, len))
    }

    /// With another priority.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Says that the submitting thread has nothing to do before the request's end. The device may keep it in `submit`
    /// for that long, and execute the request on it, which saves waking others: [`FileDevice`](crate::FileDevice) does so
    /// with flushes.
    #[must_use]
    pub fn allow_inline(mut self) -> Self {
        self.inline_allowed = true;
        self
    }

    /// With a callback for its end. It runs once, on whichever thread saw the end (before
    /// `submit` returns, if the request is refused or the medium answers at once), and must not
    /// block.
    ///
    /// # Panics
    /// If the request has a callback or a layer already.
    #[must_use]
    pub fn on_done(mut self, callback: impl FnOnce(Completion) + Send + 'static) -> Self {
        assert!(self.callback.is_none(), "a request has one callback; layers go over it");
        assert!(self.layers.is_none(), "the callback is set before any layer");
        self.callback = Some(Box::new(callback));
        self
    }

    /// With a layer: `f` sees the completion, and may change it, before whoever set a callback
    /// or a layer earlier does. If `f` panics, the request fails.
    #[must_use]
    pub fn layered(mut self, f: impl FnOnce(&mut Completion) + Send + 'static) -> Self {
        let inner = self.layers.take();
        self.layers = Some(Box::new(move |completion| {
            if !completion::catch_panic(|| f(completion)) {
                completion.fail_for_panic();
            }
            if let Some(inner) = inner {
                inner(completion);
            }
        }));
        self
    }

    /// Makes it a request of a root. Layers that it has already become part of its callback.
    pub(crate) fn join(&mut self, hold: Hold) {
        if self.layers.is_some() || self.hold.is_some() {
            let (layers, before, callback) =
                (self.layers.take(), self.hold.take(), self.callback.take());
            self.callback = Some(Box::new(move |completion| {
                RequestEnd { completion, layers, hold: before, callback }.deliver();
            }));
        }
        self.hold = Some(hold);
    }

    /// With a future for its end, which can also be waited for on a thread.
    /// Set it before any layer.
    #[must_use]
    pub fn pending(mut self) -> (Self, Pending) {
        let pending = Pending::new();
        let waiter = pending.waiter();
        self.waiter = Some(pending.waiter());
        (self.on_done(move |completion| waiter.complete(completion)), pending)
    }

    /// With a handle that can raise its priority, or cancel it, while it waits in a queue.
    #[must_use]
    pub fn raisable(mut self) -> (Self, RaiseHandle) {
        let raised = Arc::clone(self.handle.get_or_insert_with(|| {
            Arc::new(HandleState {
                cancelled: AtomicBool::new(false),
                wanted_priority: AtomicU8::new(u8::MAX),
                requeue_target: Mutex::named("request-handle", None),
            })
        }));
        (self, RaiseHandle(raised))
    }

    /// What is asked for.
    #[inline]
    pub fn op(&self) -> Op {
        self.op
    }

    /// How urgent: as it was made, or as its handle has raised it since.
    #[inline]
    pub fn priority(&self) -> Priority {
        match &self.handle {
            Some(raised) => raised
                .wanted_priority()
                .map_or(self.priority, |wanted_priority| wanted_priority.min(self.priority)),
            None => self.priority,
        }
    }

    /// The first byte; 0 for a flush.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Number of bytes; 0 for a flush.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "the length of a range on a device")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// One past the last byte, if that is a number of 64 bits.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// Its memory.
    pub fn payload(&self) -> Option<&Payload> {
        self.payload.as_ref()
    }

    /// The bytes of its memory, to change, if the memory is the request's own.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.payload.as_mut()?.bytes_mut()
    }

    /// Its memory, to change. For the engines: kind and length must stay as they are.
    pub(crate) fn payload_mut(&mut self) -> Option<&mut Payload> {
        self.payload.as_mut()
    }

    /// Whether its submitter may be kept until its end.
    pub(crate) fn is_inline_allowed(&self) -> bool {
        self.inline_allowed
    }

    /// Whether its handle or its root has cancelled it.
    pub fn is_cancelled(&self) -> bool {
        self.handle.as_ref().is_some_and(|raised| raised.cancelled.load(Ordering::Acquire))
            || self.hold.as_ref().is_some_and(Hold::is_cancelled)
    }

    /// Tells who waits for it where the engine has put it, see [`Waiter::place`].
    pub(crate) fn set_engine_tag(&self, place: usize) {
        if let Some(waiter) = &self.waiter {
            waiter.set_engine_tag(place);
        }
    }

    /// Tells the handle, if there is one, which queue to ask; `None` once it has left it. The
    /// queue asks for [`priority`](Self::priority) after that: it has then heard of every raise that
    /// the handle did not tell it.
    pub(crate) fn set_requeue_target(
        &self,
        requeue_target: Option<(Weak<dyn RequeueTarget>, u64)>,
    ) {
        if let Some(raised) = &self.handle {
            *raised.requeue_target.lock() = requeue_target;
        }
    }

    /// Whether somebody holds a handle.
    pub(crate) fn has_handle(&self) -> bool {
        self.handle.is_some()
    }

    /// Ends the request: runs its callback, now or, inside another callback of this thread,
    /// right after that one.
    pub fn finish(mut self, result: Result<(), Error>) {
        self.end_with(result);
    }

    fn end_with(&mut self, result: Result<(), Error>) {
        if let Some(raised) = self.handle.take() {
            *raised.requeue_target.lock() = None;
        }
        // Not the last reference, so nothing is dropped here. If it outlived the callback, it could be
        // the last: then what the waiter was left (memory of a user's own type, which may hold the
        // device) would be dropped on this thread outside of any callback.
        self.waiter = None;
        let payload = self.payload.take();
        let completion = Completion { op: self.op, offset: self.offset, result, payload };
        let (layers, hold, callback) = (self.layers.take(), self.hold.take(), self.callback.take());
        completion::run(RequestEnd { completion, layers, hold, callback });
    }

    /// Whether somebody is still to hear of its end.
    fn is_awaited(&self) -> bool {
        self.callback.is_some() || self.hold.is_some() || self.layers.is_some()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.is_awaited() {
            let text = "the request was dropped unfinished, by a panic or a defect";
            let range = (self.offset, self.len);
            let error = Error::new(ErrorKind::Device, self.op, &"?".into(), range, text);
            self.end_with(Err(error));
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("op", &self.op)
            .field("priority", &self.priority)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("payload", &self.payload)
            .finish_non_exhaustive()
    }
}

/// A queue, as far as a handle needs it.
pub(crate) trait RequeueTarget: Send + Sync {
    /// Moves the request called `id` up to `priority`, or finishes it if it is cancelled. Does
    /// nothing when it has left the queue.
    fn requeue(&self, id: u64, priority: Option<Priority>);
}

struct HandleState {
    cancelled: AtomicBool,
    // The most urgent class that was asked for, as its index; written under the lock of `requeue_target`.
    wanted_priority: AtomicU8,
    // Where it waits, and its name there.
    requeue_target: Mutex<Option<(Weak<dyn RequeueTarget>, u64)>>,
}

impl HandleState {
    fn wanted_priority(&self) -> Option<Priority> {
        Priority::ALL.get(usize::from(self.wanted_priority.load(Ordering::Acquire))).copied()
    }
}

/// Raises or cancels a request that waits in a queue, or has not come to it yet. One that was issued goes its way.
/// Neither runs callbacks on the calling thread: what is taken back ends on one of the device's.
#[derive(Clone)]
pub struct RaiseHandle(Arc<HandleState>);

impl RaiseHandle {
    /// Somebody waits for it now: serve it as `priority`, if that is more urgent.
    pub fn raise(&self, priority: Priority) {
        self.deliver(Some(priority));
    }

    /// Takes the request back, if it was not issued yet: it ends with
    /// [`ErrorKind::Cancelled`].
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        self.deliver(None);
    }

    fn deliver(&self, priority: Option<Priority>) {
        let requeue_target = {
            let requeue_target = self.0.requeue_target.lock();
            if let Some(priority) = priority {
                let before = self.0.wanted_priority.load(Ordering::Relaxed);
                self.0.wanted_priority.store(before.min(priority.index() as u8), Ordering::Release);
            }
            requeue_target.clone()
        };
        // Not under the handle's lock: the queue has a lock of its own.
        if let Some((requeue_target, id)) =
            requeue_target.and_then(|(requeue_target, id)| Some((requeue_target.upgrade()?, id)))
        {
            requeue_target.requeue(id, priority);
        }
    }
}

impl fmt::Debug for RaiseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RaiseHandle")
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests;
