//! Doubly linked lists of keys. All lists of a policy share one array of links, indexed by key, so
//! a key is in at most one list at a time.

const NONE: u32 = u32::MAX;

/// The links of all keys.
pub(super) struct Links(Vec<Link>);

#[derive(Clone, Copy)]
struct Link {
    toward_front: u32,
    toward_back: u32,
}

/// Ends and length of one list.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    front: u32,
    back: u32,
    len: usize,
}

impl List {
    /// An empty list.
    pub(super) const fn new() -> Self {
        Self { front: NONE, back: NONE, len: 0 }
    }
    pub(super) fn len(&self) -> usize {
        self.len
    }
    pub(super) fn back(&self) -> Option<u32> {
        (self.back != NONE).then_some(self.back)
    }
}

impl Links {
    /// Links for keys below `keys`, none of which is in a list.
    pub(super) fn new(keys: usize) -> Self {
        Self(vec![Link { toward_front: NONE, toward_back: NONE }; keys])
    }

    fn at(&mut self, key: u32) -> &mut Link {
        &mut self.0[key as usize]
    }

    pub(super) fn push_front(&mut self, list: &mut List, key: u32) {
        *self.at(key) = Link { toward_front: NONE, toward_back: list.front };
        match list.front {
            NONE => list.back = key,
            front => self.at(front).toward_front = key,
        }
        list.front = key;
        list.len += 1;
    }

    /// Removes a key from `list`, which contains it.
    pub(super) fn remove(&mut self, list: &mut List, key: u32) {
        let Link { toward_front, toward_back } = *self.at(key);
        match toward_front {
            NONE => list.front = toward_back,
            other => self.at(other).toward_back = toward_back,
        }
        match toward_back {
            NONE => list.back = toward_front,
            other => self.at(other).toward_front = toward_front,
        }
        list.len -= 1;
    }

    pub(super) fn pop_back(&mut self, list: &mut List) -> Option<u32> {
        let back = list.back()?;
        self.remove(list, back);
        Some(back)
    }

    pub(super) fn move_to_front(&mut self, list: &mut List, key: u32) {
        self.remove(list, key);
        self.push_front(list, key);
    }

    /// The next key towards the front.
    pub(super) fn toward_front(&self, key: u32) -> Option<u32> {
        let other = self.0[key as usize].toward_front;
        (other != NONE).then_some(other)
    }
}
