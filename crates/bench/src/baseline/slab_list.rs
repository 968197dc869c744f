//! Doubly linked lists over one slab of nodes: intrusive lists in safe code. A node is in one list
//! at a time, which the caller names.

/// No node.
const NONE: u32 = u32::MAX;

struct Node<T> {
    item: T,
    previous: u32,
    next: u32,
}

/// Nodes of several lists.
pub(super) struct Slab<T> {
    nodes: Vec<Node<T>>,
    free: u32,
}

/// Ends and length of a list; new nodes enter at the front.
#[derive(Clone, Copy)]
pub(super) struct List {
    head: u32,
    tail: u32,
    len: u64,
}

impl List {
    pub(super) fn new() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The oldest node.
    pub(super) fn tail(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { nodes: Vec::new(), free: NONE }
    }

    pub(super) fn item(&self, node: u32) -> &T {
        &self.nodes[node as usize].item
    }

    pub(super) fn item_mut(&mut self, node: u32) -> &mut T {
        &mut self.nodes[node as usize].item
    }

    /// The next node towards the front.
    pub(super) fn newer(&self, node: u32) -> Option<u32> {
        let newer = self.nodes[node as usize].previous;
        (newer != NONE).then_some(newer)
    }

    /// A new node at the front of `list`.
    pub(super) fn insert(&mut self, list: &mut List, item: T) -> u32 {
        let node = if self.free == NONE {
            assert!(self.nodes.len() < NONE as usize, "a slab holds 2^32-1 nodes");
            self.nodes.push(Node { item, previous: NONE, next: NONE });
            (self.nodes.len() - 1) as u32
        } else {
            let node = self.free;
            self.free = self.nodes[node as usize].next;
            self.nodes[node as usize].item = item;
            node
        };
        self.link(list, node);
        node
    }

    /// Inserts a node that is in no list at the front of `list`.
    pub(super) fn link(&mut self, list: &mut List, node: u32) {
        let old = list.head;
        let this = &mut self.nodes[node as usize];
        (this.previous, this.next) = (NONE, old);
        if old == NONE {
            list.tail = node;
        } else {
            self.nodes[old as usize].previous = node;
        }
        list.head = node;
        list.len += 1;
    }

    /// Removes a node from `list`, which contains it.
    pub(super) fn unlink(&mut self, list: &mut List, node: u32) {
        let (previous, next) = {
            let this = &self.nodes[node as usize];
            (this.previous, this.next)
        };
        if previous == NONE {
            list.head = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next == NONE {
            list.tail = previous;
        } else {
            self.nodes[next as usize].previous = previous;
        }
        list.len -= 1;
    }

    /// Removes a node from `list` and frees it.
    pub(super) fn remove(&mut self, list: &mut List, node: u32) {
        self.unlink(list, node);
        self.nodes[node as usize].next = self.free;
        self.free = node;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_tail(slab: &Slab<u32>, list: &List) -> Vec<u32> {
        let mut at = list.tail();
        let mut items = Vec::new();
        while let Some(node) = at {
            items.push(*slab.item(node));
            at = slab.newer(node);
        }
        items
    }

    #[test]
    fn order_and_reuse() {
        let (mut slab, mut a, mut b) = (Slab::new(), List::new(), List::new());
        let nodes: Vec<u32> = (0..4).map(|i| slab.insert(&mut a, i)).collect();
        assert_eq!(from_tail(&slab, &a), [0, 1, 2, 3]);
        slab.unlink(&mut a, nodes[1]);
        slab.link(&mut b, nodes[1]);
        slab.remove(&mut a, nodes[3]);
        slab.remove(&mut a, nodes[0]);
        assert_eq!((from_tail(&slab, &a), from_tail(&slab, &b)), (vec![2], vec![1]));
        assert_eq!(slab.insert(&mut b, 9), nodes[0]);
        assert_eq!(from_tail(&slab, &b), [1, 9]);
        assert_eq!((a.len(), b.len()), (1, 2));
    }
}
