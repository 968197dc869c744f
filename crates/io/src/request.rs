//! Requests and their completions.
//!
//! A [`Request`] is moved from its creator through decorators, queue and engine to
//! [`Request::finish`]. That consumes it and hands its memory on in a [`Completion`]. So a request
//! completes exactly once: its owner must finish it, and nothing else can.
//!
//! Invariant: a request that is dropped unfinished (by a panic) completes with an error.

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

/// An operation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the buffer.
    Read,
    /// Store the bytes. Durable only after a flush that was submitted after the write completed.
    Write,
    /// Make every write durable that completed before the flush was submitted.
    Flush,
    /// Declare the bytes unused. Until written again they read as zero or as before.
    Discard,
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Discard];

    /// Returns the name used by counters and messages.
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

type MayIssue = dyn Fn() -> bool + Send + Sync;

/// Says whether requests may still be issued.
// A thin pointer, because requests are moved a lot.
#[derive(Clone)]
pub struct Fence(Arc<Box<MayIssue>>);

impl Fence {
    /// Creates a fence. `may_issue` is called under the lock of a queue, so it only looks.
    pub fn new(may_issue: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(Box::new(may_issue)))
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fence")
    }
}

/// One operation on a device, with its memory and its callback.
pub struct Request {
    op: Op,
    priority: Priority,
    offset: u64,
    len: u64,
    payload: Option<Payload>,
    // The creator's callback. `None` once finished.
    callback: Option<Callback>,
    // The request's root. It is notified before `callback`.
    hold: Option<Hold>,
    // Layers of decorators. They see the completion before root and callback.
    layers: Option<Layer>,
    handle: Option<Arc<HandleState>>,
    fence: Option<Fence>,
    // The waiter, for the engine's tag. `callback` holds another reference and is dropped later.
    waiter: Option<Arc<Waiter>>,
    // The submitting thread may be blocked until completion.
    inline_allowed: bool,
}

/// The result of a request.
#[derive(Debug)]
pub struct Completion {
    /// The operation.
    pub op: Op,
    /// The first byte.
    pub offset: u64,
    /// Success of the whole request, or the error. After a failed read the buffer's content is
    /// unspecified. After a failed write each sector on the medium is old, new or damaged.
    pub result: Result<(), Error>,
    /// The request's memory, whatever the result.
    pub payload: Option<Payload>,
}

impl Completion {
    /// Returns the buffer that was read into.
    ///
    /// # Errors
    /// The request's error.
    ///
    /// # Panics
    /// If the request had no buffer of its own.
    pub fn into_buffer(self) -> Result<Buffer, Error> {
        self.result?;
        Ok(self.payload.and_then(Payload::into_buffer).expect("the request had a buffer"))
    }

    /// Fails the request because a layer panicked, so its checks may not have run.
    pub(crate) fn fail_for_panic(&mut self) {
        if self.result.is_ok() {
            let text = "a layer of the request panicked, so its result cannot be trusted";
            let mut range = (self.offset, 0);
            // Memory of a user's type may panic.
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
        let (handle, fence, waiter) = (None, None, None);
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
            fence,
            waiter,
            inline_allowed,
        }
    }

    /// Creates a read of the bytes at `offset` into `buffer`, with priority
    /// [`SyncRead`](Priority::SyncRead).
    pub fn read(offset: u64, buffer: Buffer) -> Self {
        let mut request = Self::new(Op::Read, Priority::SyncRead, (offset, buffer.len() as u64));
        request.payload = Some(Payload::Owned(buffer));
        request
    }

    /// Creates a write of `buffer` at `offset`, with priority [`AsyncWrite`](Priority::AsyncWrite).
    pub fn write(offset: u64, buffer: Buffer) -> Self {
        let mut request = Self::new(Op::Write, Priority::AsyncWrite, (offset, buffer.len() as u64));
        request.payload = Some(Payload::Owned(buffer));
        request
    }

    /// Creates a write of shared bytes at `offset`, with priority
    /// [`AsyncWrite`](Priority::AsyncWrite). Others may read the bytes meanwhile.
    pub fn write_shared(offset: u64, bytes: Box<dyn StableBytes>) -> Self {
        let len = bytes.bytes().len() as u64;
        let mut request = Self::new(Op::Write, Priority::AsyncWrite, (offset, len));
        request.payload = Some(Payload::Shared(bytes));
        request
    }

    /// Creates a flush, with priority [`SyncWrite`](Priority::SyncWrite).
    pub fn flush() -> Self {
        Self::new(Op::Flush, Priority::SyncWrite, (0, 0))
    }

    /// Creates a discard of `len` bytes at `offset`, with priority
    /// [`AsyncWrite`](Priority::AsyncWrite).
    pub fn discard(offset: u64, len: u64) -> Self {
        Self::new(Op::Discard, Priority::AsyncWrite, (offset, len))
    }

    /// Sets the priority.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Cancels the request if `fence` says so when it is issued: it may have been queued for long.
    #[must_use]
    pub fn with_fence(mut self, fence: Option<Fence>) -> Self {
        self.fence = fence;
        self
    }

    /// Allows `submit` to block until completion and execute the request on the calling thread,
    /// because that thread has nothing else to do. This saves context switches.
    /// [`FileDevice`](crate::FileDevice) uses it for flushes.
    #[must_use]
    pub fn allow_inline(mut self) -> Self {
        self.inline_allowed = true;
        self
    }

    /// Sets the callback. It runs once, on the thread that sees the completion, and must not block.
    /// It may run before `submit` returns, if the request is refused or the medium answers at once.
    ///
    /// # Panics
    /// If the request has a callback or a layer already.
    #[must_use]
    pub fn on_done(mut self, callback: impl FnOnce(Completion) + Send + 'static) -> Self {
        assert!(self.callback.is_none(), "a request has one callback; add a layer instead");
        assert!(self.layers.is_none(), "set the callback before any layer");
        self.callback = Some(Box::new(callback));
        self
    }

    /// Adds a layer: `f` sees the completion, and may change it, before earlier layers and the
    /// callback. If `f` panics, the request fails.
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

    /// Makes it a request of a root. Its existing layers become part of its callback.
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

    /// Adds a future of its completion, on which a thread can also block. Call it before any layer
    /// is added.
    #[must_use]
    pub fn pending(mut self) -> (Self, Pending) {
        let pending = Pending::new();
        let waiter = pending.waiter();
        self.waiter = Some(pending.waiter());
        (self.on_done(move |completion| waiter.complete(completion)), pending)
    }

    /// Adds a handle that can raise its priority or cancel it while it is queued.
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

    /// Returns the operation.
    #[inline]
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the priority, including raises by its handle.
    #[inline]
    pub fn priority(&self) -> Priority {
        match &self.handle {
            Some(raised) => raised
                .wanted_priority()
                .map_or(self.priority, |wanted_priority| wanted_priority.min(self.priority)),
            None => self.priority,
        }
    }

    /// Returns the first byte; 0 for a flush.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes; 0 for a flush.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "the length of a range on a device")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns one past the last byte, if that fits in 64 bits.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// Returns its memory.
    pub fn payload(&self) -> Option<&Payload> {
        self.payload.as_ref()
    }

    /// Returns its memory, mutably, if it is the request's own.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.payload.as_mut()?.bytes_mut()
    }

    /// Takes its memory, for a device that lends the bytes to others. They come back by
    /// [`put_payload`](Self::put_payload), or the completion has none.
    pub fn take_payload(&mut self) -> Option<Payload> {
        self.payload.take()
    }

    /// Gives its memory back.
    pub fn put_payload(&mut self, payload: Payload) {
        self.payload = Some(payload);
    }

    /// Returns its memory, mutably. For engines: kind and length must stay the same.
    pub(crate) fn payload_mut(&mut self) -> Option<&mut Payload> {
        self.payload.as_mut()
    }

    /// Returns whether its submitter may be blocked until completion.
    pub(crate) fn is_inline_allowed(&self) -> bool {
        self.inline_allowed
    }

    /// Returns whether its handle or its root has cancelled it, or its fence does now.
    pub fn is_cancelled(&self) -> bool {
        self.handle.as_ref().is_some_and(|raised| raised.cancelled.load(Ordering::Acquire))
            || self.hold.as_ref().is_some_and(Hold::is_cancelled)
            || self.fence.as_ref().is_some_and(|fence| !(fence.0)())
    }

    /// Stores the engine's tag for the waiter, see [`Waiter::engine_tag`].
    pub(crate) fn set_engine_tag(&self, engine_tag: usize) {
        if let Some(waiter) = &self.waiter {
            waiter.set_engine_tag(engine_tag);
        }
    }

    /// Tells the handle, if there is one, which queue holds the request; `None` once it has left
    /// the queue. The queue reads [`priority`](Self::priority) afterwards, and so sees every raise
    /// that was not sent to it.
    pub(crate) fn set_requeue_target(
        &self,
        requeue_target: Option<(Weak<dyn RequeueTarget>, u64)>,
    ) {
        if let Some(raised) = &self.handle {
            *raised.requeue_target.lock() = requeue_target;
        }
    }

    /// Returns whether the request has a handle.
    pub(crate) fn has_handle(&self) -> bool {
        self.handle.is_some()
    }

    /// Completes the request: runs its callback now, or, inside another callback of this thread,
    /// right after that one.
    pub fn finish(mut self, result: Result<(), Error>) {
        self.end_with(result);
    }

    fn end_with(&mut self, result: Result<(), Error>) {
        if let Some(raised) = self.handle.take() {
            *raised.requeue_target.lock() = None;
        }
        // Not the last reference, so nothing is dropped here. If this reference outlived the
        // callback, it could be the last one. Then the completion (with memory of a user's type,
        // which may hold the device) would be dropped on this thread, outside any callback.
        self.waiter = None;
        let payload = self.payload.take();
        let completion = Completion { op: self.op, offset: self.offset, result, payload };
        let (layers, hold, callback) = (self.layers.take(), self.hold.take(), self.callback.take());
        completion::run(RequestEnd { completion, layers, hold, callback });
    }

    /// Returns whether its completion has not been delivered.
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

/// A queue, as a handle sees it.
pub(crate) trait RequeueTarget: Send + Sync {
    /// Moves request `id` up to `priority`, or finishes it if it was cancelled. Does nothing if the
    /// request has left the queue.
    fn requeue(&self, id: u64, priority: Option<Priority>);
}

struct HandleState {
    cancelled: AtomicBool,
    // Index of the most urgent class requested. Written under the lock of `requeue_target`.
    wanted_priority: AtomicU8,
    // The queue that holds the request, and the request's identifier there.
    requeue_target: Mutex<Option<(Weak<dyn RequeueTarget>, u64)>>,
}

impl HandleState {
    fn wanted_priority(&self) -> Option<Priority> {
        Priority::ALL.get(usize::from(self.wanted_priority.load(Ordering::Acquire))).copied()
    }
}

/// Raises or cancels a request that is queued or will be. Requests that were issued are not
/// affected. Runs no callbacks on the calling thread: a cancelled request completes on a thread of
/// the device.
#[derive(Clone)]
pub struct RaiseHandle(Arc<HandleState>);

impl RaiseHandle {
    /// Serves the request as `priority`, if that is more urgent, because a thread waits for it now.
    pub fn raise(&self, priority: Priority) {
        self.deliver(Some(priority));
    }

    /// Cancels the request, if it was not issued yet. It completes with [`ErrorKind::Cancelled`].
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
