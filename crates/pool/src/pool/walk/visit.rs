//! Visits of single blocks: reads, a second look before a block counts as damaged, healing.

use crate::error::{Error, ErrorKind, Result};
use crate::format::BlockPtrPhys;
use crate::pool::PoolInner;
use crate::store::Store;

use super::copies::{ReadCopies, read_copies};
use super::find::Currency;
use super::{PostponedBlock, SliceEnd, Step, VisitedBlock, Visitor};

/// What a visit of a block has read.
pub(super) enum Visited {
    /// The visitor wants no copy of it.
    NotTried,
    /// Its content if it was wanted, and is good.
    Read(Option<Vec<u8>>),
}

impl PoolInner {
    /// Visits a block that the visitor has postponed, unless it was freed meanwhile: maybe by a txg
    /// that is not durable yet.
    ///
    /// # Errors
    /// As [`Visitor::block`].
    pub(in super::super) fn visit_later(
        &self,
        block: PostponedBlock<'_>,
        visitor: &mut dyn Visitor,
    ) -> Step {
        match self.visit(block, false, None, visitor) {
            Err(SliceEnd::Overtaken) => Ok(()),
            visited => visited.map(|_| ()),
        }
    }

    /// Ends the walk if `error` comes from a device that does not answer and comes back by itself.
    /// It has lost nothing.
    ///
    /// # Errors
    /// The outage.
    pub(super) fn check_answers(&self, error: &Error) -> Step {
        let outage = || self.txgs.outage();
        let Some(outage) = (error.kind() == ErrorKind::Device).then(outage).flatten() else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Device, "cannot read all of the pool").because(outage).into())
    }

    /// Calls `read`, and once more if it `failed` on a pool with a device that may be away: an
    /// outage may end just after a read failed. So a failure that it returns counts as damage.
    ///
    /// # Errors
    /// The outage, if one lasts.
    pub(super) fn read_surely<T>(
        &self,
        mut read: impl FnMut() -> Step<T>,
        failed: impl Fn(&T) -> Option<&Error>,
    ) -> Step<T> {
        let is_device = |error: &&Error| error.kind() == ErrorKind::Device;
        let first = read()?;
        let Some(error) = failed(&first).filter(is_device) else { return Ok(first) };
        self.check_answers(error)?;
        if !self.txgs.may_have_outages() {
            return Ok(first);
        }
        let second = read()?;
        failed(&second).map_or(Ok(()), |error| self.check_answers(error))?;
        Ok(second)
    }

    /// The content of a block, or why it is damaged.
    ///
    /// # Errors
    /// Errors that are no damage.
    pub(super) fn read_content(&self, store: &Store, ptr: &BlockPtrPhys) -> Step<Result<Vec<u8>>> {
        let read = || match store.with_content(ptr, |content| Ok(content.to_vec())) {
            Err(error) if !is_damage(&error) => Err(error.into()),
            read => Ok(read),
        };
        self.read_surely(read, |read| read.as_ref().err())
    }

    /// Reads the copies of a block that the visitor wants, and passes it to the visitor.
    pub(super) fn visit(
        &self,
        PostponedBlock { store, ptr, location }: PostponedBlock<'_>,
        wants_content: bool,
        ahead: Option<ReadCopies>,
        visitor: &mut dyn Visitor,
    ) -> Step<Visited> {
        let wants = |copy| visitor.wants(store, ptr, copy);
        let copies = || Ok(read_copies(store, ptr, wants_content, &wants)?);
        let mut read = match ahead {
            Some(read) => read,
            None => self.read_surely(copies, ReadCopies::device_error)?,
        };
        if read.tried == 0 {
            return Ok(Visited::NotTried);
        }
        if !read.bad.is_empty() || read.lost_extents.is_some() {
            self.check_not_freed(location, ptr)?;
            read.bad.iter().for_each(|(copy, error)| store.note_bad_copy(ptr, *copy, error));
        }
        if let Some(error) = read.lost_extents.take() {
            visitor.damaged(location, error);
        }
        let (extents, bad, copies) = (&read.extents[..], read.bad, read.copies);
        visitor.block(VisitedBlock { store, ptr, location, extents, bad, copies })?;
        Ok(Visited::Read(read.content))
    }

    /// Rewrites a bad copy of a visited block from a good one. Returns `false` if the block was
    /// freed meanwhile. The write is durable after the next flush.
    ///
    /// Writes only after a lookup has found the pointer in the newest tree. Without one, the copy
    /// may belong to a newer block by now.
    ///
    /// # Errors
    /// As [`Store::heal`]; [`ErrorKind::Corrupt`] if the lookup fails because another block is
    /// damaged; and errors of the lookup that are no damage.
    pub(in super::super) fn heal(&self, block: &VisitedBlock<'_>, copy: usize) -> Result<bool> {
        self.check_lease()?;
        let _heal = self.store.heals().enter(self.txgs.synced_txg());
        match self.currency(block.location, block.ptr)? {
            Currency::Current => block.store.heal(block.ptr, copy).map(|()| true),
            Currency::Freed => Ok(false),
            Currency::Unknown => {
                let text = "it is bad and was left as it is, because a block that leads to it cannot be read; repair that one, then scrub again";
                Err(Error::new(ErrorKind::Corrupt, text))
            }
        }
    }
}

/// Whether an error concerns one block, and not the whole walk.
pub(super) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Device)
}
