//! R2's I/O roots before and after: parents that keep their children in a list under a lock.
//!
//! Every request is a child of a root. The root links it at submission and unlinks it at
//! completion, each time under the root's lock. Errors are collected under it too, and the last
//! child wakes the thread that drains the root. One root is "before"; sixteen, selected by a shared
//! round-robin counter, are "after".
//!
//! The baseline is faster than the report's system, which took the parent's lock twice at
//! completion and counted references to the root. As there, each link is a small allocation.
//!
//! Locking: a root's lock is held for a few stores, and nothing is called under it.
//!
//! It has no refusal after closing, no cancellation and no generations:
//! [`drain`](LockedRoots::drain) waits for a moment without children.

use forebay_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use forebay_base::sync::{Condvar, Mutex};
use forebay_io::{Completion, Device, Error, ErrorKind, Request};

use super::slab_list::{List, Slab};

struct Children {
    list: List,
    /// The offset of each child.
    slab: Slab<u64>,
    failed: u64,
    last_error: Option<ErrorKind>,
}

/// One parent, on its own cache lines.
#[repr(align(128))]
struct Root {
    children: Mutex<Children>,
    empty: Condvar,
}

impl Root {
    fn link(&self, offset: u64) -> u32 {
        let mut children = self.children.lock();
        let Children { list, slab, .. } = &mut *children;
        slab.insert(list, offset)
    }

    fn unlink(&self, node: u32, error: Option<ErrorKind>) {
        let mut children = self.children.lock();
        let Children { list, slab, .. } = &mut *children;
        slab.remove(list, node);
        if error.is_some() {
            children.failed += 1;
            children.last_error = error;
        }
        let last = children.list.len() == 0;
        drop(children);
        if last {
            self.empty.notify_all();
        }
    }
}

/// Roots with a lock each.
pub(crate) struct LockedRoots {
    /// Leaked, so that a child needs no reference count. A bench makes few.
    roots: &'static [Root],
    /// The next root; shared by all submitters.
    next_root: RoundRobin,
}

#[repr(align(128))]
struct RoundRobin(AtomicU64);

impl LockedRoots {
    /// Lock class of the roots' locks in the counting build.
    pub(crate) const LOCK: &'static str = "baseline root";

    /// `count` roots.
    pub(crate) fn new(count: usize) -> Self {
        assert!(count > 0, "there is a root");
        let root = || {
            let children =
                Children { list: List::new(), slab: Slab::new(), failed: 0, last_error: None };
            Root { children: Mutex::named(Self::LOCK, children), empty: Condvar::new() }
        };
        let roots: Vec<Root> = (0..count).map(|_| root()).collect();
        Self {
            roots: Box::leak(roots.into_boxed_slice()),
            next_root: RoundRobin(AtomicU64::new(0)),
        }
    }

    /// Number of roots.
    pub(crate) fn len(&self) -> usize {
        self.roots.len()
    }

    fn next(&self) -> &'static Root {
        match self.roots {
            [only] => only,
            several => &several[self.next_root.0.fetch_add(1, Relaxed) as usize % several.len()],
        }
    }

    /// Submits requests, each as a child of the next root, linked separately as in the report's
    /// system.
    pub(crate) fn submit_all(&self, device: &dyn Device, requests: Vec<Request>) {
        let child = |request: Request| {
            let root = self.next();
            let node = root.link(request.offset());
            request.layered(move |completion: &mut Completion| {
                root.unlink(node, completion.result.as_ref().err().map(Error::kind));
            })
        };
        let mut children: Vec<Request> = requests.into_iter().map(child).collect();
        device.submit_all(&mut children);
    }

    /// Waits until each root had a moment without children.
    pub(crate) fn drain(&self) {
        for root in self.roots {
            let mut children = root.children.lock();
            while children.list.len() > 0 {
                root.empty.wait(&mut children);
            }
        }
    }

    /// Number of failed requests.
    pub(crate) fn failed(&self) -> u64 {
        self.roots.iter().map(|root| root.children.lock().failed).sum()
    }

    /// Links and unlinks a child: the cost of a request in the roots, for measuring it alone.
    pub(crate) fn visit(&self, offset: u64) {
        let root = self.next();
        let node = root.link(offset);
        root.unlink(node, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_come_and_go() {
        let roots = LockedRoots::new(3);
        let nodes: Vec<_> =
            (0..9u64).map(|i| (roots.next(), i)).map(|(root, i)| (root, root.link(i))).collect();
        assert!(roots.roots.iter().all(|root| root.children.lock().list.len() == 3), "in turns");
        for (i, (root, node)) in nodes.into_iter().enumerate() {
            root.unlink(node, (i == 4).then_some(ErrorKind::Device));
        }
        roots.drain();
        roots.visit(7);
        roots.drain();
        assert_eq!(roots.failed(), 1);
    }
}
