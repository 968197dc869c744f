//! A queue whose entries have positions, which only increase.
//!
//! Entries are pushed at the head and popped at the tail. An entry can be read or set by its
//! position while it is in the queue. Memory is allocated and freed in blocks, so a long queue
//! never moves.
//!
//! Rings share [`FreeBlocks`], so blocks that one ring frees serve another. Through the C
//! allocator, they would stay in the heap of the thread that allocated them, uncounted.
//!
//! Locking: a sublist wraps it in a mutex; `ring-blocks` under that.

use std::collections::VecDeque;

use forebay_base::sync::{Arc, Mutex};

/// Entries per block.
const BLOCK: usize = if cfg!(any(miri, forebay_model)) { 4 } else { 512 };

/// Free blocks kept at most.
const KEPT_BLOCKS: usize = 32;

/// Blocks that no ring uses.
pub(crate) struct FreeBlocks<T>(Mutex<Vec<Box<[T; BLOCK]>>>);

impl<T: Copy + Default> FreeBlocks<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::named("ring-blocks", Vec::new())))
    }

    fn take(&self) -> Box<[T; BLOCK]> {
        let kept = self.0.lock().pop();
        kept.unwrap_or_else(|| Box::new([T::default(); BLOCK]))
    }

    fn give(&self, block: Box<[T; BLOCK]>) {
        let mut kept = self.0.lock();
        if kept.len() < KEPT_BLOCKS {
            kept.push(block);
        }
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.0.lock().len() * size_of::<[T; BLOCK]>()) as u64
    }

    /// Frees all blocks.
    pub(crate) fn trim(&self) {
        *self.0.lock() = Vec::new();
    }
}

pub(crate) struct Ring<T> {
    /// The first block has the tail, the last one the head.
    blocks: VecDeque<Box<[T; BLOCK]>>,
    /// A block kept for reuse, so that a queue of constant length does not allocate.
    spare: Option<Box<[T; BLOCK]>>,
    free: Arc<FreeBlocks<T>>,
    /// Position of the oldest entry.
    tail: u64,
    /// Position of the next entry.
    head: u64,
    /// State of an unfinished `compact`.
    sweep: Option<Sweep>,
    /// Steps of compaction so far.
    slides: u64,
    /// Position up to which each `Hand` has passed.
    hands: [u64; 2],
}

/// A pointer that moves along a queue ahead of its tail and visits each entry once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hand {
    /// Clears marks as blocks leave the correlated-reference window.
    Mature = 0,
    /// Offers blocks to the secondary cache.
    Offer = 1,
}

/// The range that `peek` has shown, and the compaction step at that time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peeked {
    /// Position of the first entry that was not shown.
    pub(crate) end: u64,
    slides: u64,
}

#[derive(Clone, Copy)]
struct Sweep {
    /// Entries at or above this position were examined.
    read: u64,
    /// Live entries were moved to this position and above.
    write: u64,
}

impl<T: Copy + Default> Ring<T> {
    pub(crate) fn new(free: Arc<FreeBlocks<T>>) -> Self {
        Self {
            blocks: VecDeque::new(),
            spare: None,
            free,
            tail: 0,
            head: 0,
            sweep: None,
            slides: 0,
            hands: [0; 2],
        }
    }

    /// Entries, live or stale.
    pub(crate) fn len(&self) -> u64 {
        self.head - self.tail
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// The position that the next `push` will use.
    pub(crate) fn next_position(&self) -> u64 {
        self.head
    }

    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Block and index of a position.
    fn at(&self, position: u64) -> (usize, usize) {
        let first = self.tail / BLOCK as u64;
        ((position / BLOCK as u64 - first) as usize, (position % BLOCK as u64) as usize)
    }

    #[inline]
    pub(crate) fn push(&mut self, entry: T) -> u64 {
        let position = self.head;
        let slot = (position % BLOCK as u64) as usize;
        // The head is in the last block, or at the start of one that is not there yet.
        if slot == 0 {
            self.add_block();
        }
        let last = self.blocks.len() - 1;
        self.blocks[last][slot] = entry;
        self.head += 1;
        position
    }

    #[cold]
    fn add_block(&mut self) {
        let fresh = self.spare.take().unwrap_or_else(|| self.free.take());
        self.blocks.push_back(fresh);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        if self.is_empty() {
            return None;
        }
        let position = self.tail;
        let entry = self.blocks[0][(position % BLOCK as u64) as usize];
        let next = position + 1;
        if next.is_multiple_of(BLOCK as u64) || next == self.head || self.sweep.is_some() {
            self.advance_tail(next);
        } else {
            self.tail = next;
        }
        Some((position, entry))
    }

    /// Shows up to `most` of the oldest entries without popping them. Pass the result to
    /// [`pop_peeked`](Self::pop_peeked).
    pub(crate) fn peek(&self, most: u64, mut f: impl FnMut(u64, T)) -> Peeked {
        let end = self.head.min(self.tail + most);
        let mut position = self.tail;
        for block in &self.blocks {
            if position == end {
                break;
            }
            let first = (position % BLOCK as u64) as usize;
            let count = (end - position).min((BLOCK - first) as u64) as usize;
            for entry in &block[first..first + count] {
                f(position, *entry);
                position += 1;
            }
        }
        Peeked { end, slides: self.slides }
    }

    /// Pops the peeked entries below `end` that are still in the queue. If entries were moved
    /// since, pops none: other entries may be in their positions.
    pub(crate) fn pop_peeked(&mut self, seen: Peeked, end: u64) {
        if seen.slides == self.slides && end > self.tail {
            self.advance_tail(end.min(seen.end));
        }
    }

    pub(crate) fn get(&self, position: u64) -> Option<T> {
        if position < self.tail || position >= self.head {
            return None;
        }
        let (block, slot) = self.at(position);
        Some(self.blocks[block][slot])
    }

    pub(crate) fn get_mut(&mut self, position: u64) -> Option<&mut T> {
        if position < self.tail || position >= self.head {
            return None;
        }
        let (block, slot) = self.at(position);
        Some(&mut self.blocks[block][slot])
    }

    fn advance_tail(&mut self, tail: u64) {
        let gone = tail / BLOCK as u64 - self.tail / BLOCK as u64;
        self.tail = tail;
        for _ in 0..gone {
            let block = self.blocks.pop_front();
            self.keep(block);
        }
        if self.is_empty() {
            // All entries of the head's block are gone. Positions continue at the start of a block,
            // so that block and position stay aligned.
            while let Some(block) = self.blocks.pop_front() {
                self.keep(Some(block));
            }
            let next = self.head.next_multiple_of(BLOCK as u64);
            (self.tail, self.head) = (next, next);
        }
        if self.sweep.is_some_and(|sweep| sweep.read <= self.tail) {
            self.sweep = None;
        }
    }

    /// Keeps a block that has become free.
    fn keep(&mut self, block: Option<Box<[T; BLOCK]>>) {
        if let Some(before) = std::mem::replace(&mut self.spare, block) {
            self.free.give(before);
        }
    }

    /// The position up to which a hand has passed.
    pub(crate) fn passed(&self, hand: Hand) -> u64 {
        self.hands[hand as usize]
    }

    /// Shows a hand the entries below `end` that it has not passed, oldest first, at most `most`.
    pub(crate) fn pass(&mut self, hand: Hand, end: u64, most: usize, mut f: impl FnMut(u64, T)) {
        let start = self.hands[hand as usize].max(self.tail);
        let end = end.min(self.head).min(start + most as u64);
        for position in start..end {
            if let Some(entry) = self.get(position) {
                f(position, entry);
            }
        }
        self.hands[hand as usize] = start.max(end);
    }

    /// Removes stale entries in steps of at most `most` entries, and keeps the order of the others.
    ///
    /// It slides live entries towards the head, newest first, and then drops the tail.
    /// `slide(entry, from, to)` returns whether an entry is live and, if so, stores its new
    /// position. Returns true when the sweep is complete.
    ///
    /// Between steps the queue is consistent: vacated entries read as `T::default()`, and entries
    /// pushed meanwhile lie above them.
    pub(crate) fn compact(
        &mut self,
        most: usize,
        mut slide: impl FnMut(T, u64, u64) -> bool,
    ) -> bool {
        self.slides += 1;
        let mut sweep = self.sweep.unwrap_or(Sweep { read: self.head, write: self.head });
        for _ in 0..most {
            if sweep.read == self.tail {
                break;
            }
            sweep.read -= 1;
            let (block, slot) = self.at(sweep.read);
            let entry = std::mem::take(&mut self.blocks[block][slot]);
            if slide(entry, sweep.read, sweep.write - 1) {
                sweep.write -= 1;
                let (block, slot) = self.at(sweep.write);
                self.blocks[block][slot] = entry;
            }
        }
        if sweep.read > self.tail {
            self.sweep = Some(sweep);
            return false;
        }
        self.sweep = None;
        self.advance_tail(sweep.write);
        true
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let blocks = self.blocks.len() + usize::from(self.spare.is_some());
        (blocks * BLOCK * size_of::<T>() + self.blocks.capacity() * size_of::<Box<[T; BLOCK]>>())
            as u64
    }

    /// Gives up memory that a long queue has left.
    pub(crate) fn trim(&mut self) {
        self.keep(None);
        self.blocks.shrink_to_fit();
    }
}

#[cfg(all(test, not(forebay_model)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::{FreeBlocks, Hand, Ring};

    #[derive(Clone, Debug)]
    enum Op {
        Push,
        Pop,
        Kill(usize),
        Compact(usize),
        Peek(u64),
        PopPeeked(usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            5 => Just(Op::Push),
            3 => Just(Op::Pop),
            3 => any::<usize>().prop_map(Op::Kill),
            2 => (1..700usize).prop_map(Op::Compact),
            2 => (0..40u64).prop_map(Op::Peek),
            2 => any::<usize>().prop_map(Op::PopPeeked),
        ];
        prop::collection::vec(op, 1..2000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 128 }))]
        /// The model keeps live entries with the position that the ring last reported.
        #[test]
        fn behaves_as_a_queue_with_positions(ops in ops()) {
            let mut ring = Ring::<u32>::new(FreeBlocks::new());
            let mut model: VecDeque<(u32, u64)> = VecDeque::new();
            let (mut look, mut moved) = (None, false);
            for (i, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Push => {
                        let entry = i as u32 + 1;
                        model.push_back((entry, ring.push(entry)));
                    }
                    Op::Pop => {
                        // Stale and vacated entries are popped too.
                        while let Some((position, entry)) = ring.pop() {
                            if model.front() == Some(&(entry, position)) {
                                model.pop_front();
                                break;
                            }
                            prop_assert!(!model.contains(&(entry, position)));
                        }
                    }
                    Op::Kill(n) if !model.is_empty() => {
                        model.remove(n % model.len());
                    }
                    Op::Kill(_) => {}
                    Op::Peek(most) => {
                        let mut shown = Vec::new();
                        let seen = ring.peek(most, |position, entry| shown.push((entry, position)));
                        (look, moved) = (Some((seen, shown)), false);
                    }
                    // Entries that were examined leave before they are popped, unless they were
                    // moved.
                    Op::PopPeeked(n) => if let Some((seen, shown)) = look.take() {
                        let (left, rest) = shown.split_at(n % (shown.len() + 1));
                        model.retain(|entry| !left.contains(entry));
                        let end = rest.first().map_or(seen.end, |(_, position)| *position);
                        ring.pop_peeked(seen, end);
                        prop_assert!(moved || ring.tail() >= end);
                    },
                    Op::Compact(most) => {
                        moved = true;
                        ring.compact(most, |entry, from, to| {
                            let live = model.iter_mut().find(|(e, p)| (*e, *p) == (entry, from));
                            live.map(|(_, position)| *position = to).is_some()
                        });
                    }
                }
                for (entry, position) in &model {
                    prop_assert_eq!(ring.get(*position), Some(*entry));
                }
                prop_assert!(model.iter().is_sorted_by_key(|(_, position)| *position));
                prop_assert!(ring.len() >= model.len() as u64);
            }
            while !ring.compact(64, |entry, from, to| {
                let live = model.iter_mut().find(|(e, p)| (*e, *p) == (entry, from));
                live.map(|(_, position)| *position = to).is_some()
            }) {}
        }
    }

    #[test]
    fn a_hand_passes_each_entry_once_and_keeps_its_distance() {
        let mut ring = Ring::<u32>::new(FreeBlocks::new());
        (1..=100).for_each(|i| {
            ring.push(i);
        });
        let mut seen = Vec::new();
        ring.pass(Hand::Mature, 10, 6, |_, entry| seen.push(entry));
        ring.pass(Hand::Mature, 10, 64, |_, entry| seen.push(entry));
        assert_eq!(seen, (1..=10).collect::<Vec<_>>());
        (0..20).for_each(|_| {
            ring.pop();
        });
        ring.pass(Hand::Mature, 100, 2, |_, entry| seen.push(entry));
        assert_eq!(seen[10..], [21, 22]);
    }
}
