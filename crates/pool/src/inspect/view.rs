//! A pool as of one txg, and its objects.

use std::ops::ControlFlow;

use forebay_base::sync::Arc;
use forebay_cache::{Attributes, OwnerCaching};
use zerocopy::FromBytes;

use super::assemble::AssembledPool;
use super::pointer::BlockPtrInfo;
use super::{Damage, Inspected, Inspector, ObjsetName};
use crate::devices::DeviceSpan;
use crate::devices::label::Uberblock;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{
    BlockPtrPhys, DNODES_PER_BLOCK, DatasetPhys, DnodePhys, ObjectKind, ObjsetPhys, RootPhys,
    ZapBlock,
};
use crate::object::DataFields;
use crate::object::tree::{self, Tree};
use crate::objset::{dnode_at, dnode_tree};
use crate::pool::{open_owner, read_root};
use crate::space::Space;
use crate::store::Store;
use crate::wait::Wait;
use crate::zap::inspect::{InlineInfo, block_entries};

/// Maximum number of repetitions for a pool that changes meanwhile.
const ATTEMPTS: u32 = 6;
/// Number of root blocks tried, newest first.
const ROOTS_TRIED: usize = 4;
/// Maximum number of datasets of a pool.
const DATASETS_MAX: usize = 4096;
/// Maximum number of blocks read per object: forged pointers can form cycles.
const BLOCKS_MAX: u64 = 1 << 27;
/// In-flight limit of the store, which writes nothing.
const IN_FLIGHT_BYTES: u64 = 1 << 20;

/// A pool as of one txg.
pub(super) struct TxgView {
    pub(super) store: Store,
    pub(super) root: RootPhys,
    pub(super) uberblock: Uberblock,
    /// The ranges of the devices that hold blocks.
    pub(super) spans: Vec<DeviceSpan>,
    /// Why newer txgs are not shown.
    pub(super) unreadable: Vec<String>,
    notices: Vec<String>,
    /// The newest txg found.
    newest: u64,
}

/// An object set.
pub(super) struct OpenObjset {
    store: Store,
    pub(super) tree: Tree,
    what: String,
}

impl Inspector {
    /// Calls `inspect` with a view of the pool as of a txg or the newest one. `inspect` returns
    /// whether it met damage. If so, and there is a newer txg by then, it starts over with that
    /// one.
    pub(super) fn inspect_as_of<T>(
        &self,
        txg: Option<u64>,
        inspect: impl Fn(&TxgView) -> Result<(T, bool)>,
    ) -> Result<Inspected<T>> {
        let mut again = 0;
        loop {
            let view = self.view(txg)?;
            let result = inspect(&view);
            let damaged = match &result {
                Ok((_, damaged)) => *damaged,
                Err(error) => error.kind() == ErrorKind::Corrupt,
            };
            let changed = damaged && self.newest_txg()? > view.newest;
            if changed && again < ATTEMPTS && txg.is_none() {
                again += 1;
                continue;
            }
            let TxgView { mut notices, uberblock, newest, unreadable, .. } = view;
            notices.extend(unreadable);
            if again > 0 {
                notices.push(format!(
                    "the pool is in use: space of the first view was reused; repeated {again} times"
                ));
            }
            if changed {
                notices.push(
                    "the pool changes while it is inspected: this damage may be reused space"
                        .to_owned(),
                );
            }
            if uberblock.txg != newest {
                notices.push(format!(
                    "the newest txg is {newest}; space freed since txg {} may be reused",
                    uberblock.txg
                ));
            }
            return match result {
                Ok((found, _)) => Ok(Inspected { txg: uberblock.txg, notices, found }),
                Err(error) if notices.is_empty() => Err(error),
                Err(error) => {
                    let text = format!("{error} ({})", notices.join("; "));
                    Err(Error::new(error.kind(), text).because(error))
                }
            };
        }
    }

    fn newest_txg(&self) -> Result<u64> {
        let assembled = self.assemble(None)?;
        Ok(assembled.uberblocks.first().map_or(0, |newest| newest.txg))
    }

    /// Returns a view of the pool as of a txg, or of the newest txg with a readable root block.
    fn view(&self, txg: Option<u64>) -> Result<TxgView> {
        let mut assembled = self.assemble(None)?;
        for _ in 0..ATTEMPTS {
            let newest = newest_of(&assembled)?;
            match self.view_of(&assembled, txg) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    assembled = self.assemble(None)?;
                    if newest_of(&assembled)? == newest {
                        return Err(error);
                    }
                }
                result => return result,
            }
        }
        self.view_of(&assembled, txg)
    }

    fn view_of(&self, assembled: &AssembledPool, txg: Option<u64>) -> Result<TxgView> {
        let newest = newest_of(assembled)?;
        let store = self.store(assembled)?;
        let uberblocks = &assembled.uberblocks;
        let tried: Vec<&Uberblock> = match txg {
            Some(txg) => uberblocks.iter().filter(|one| one.txg == txg).collect(),
            None => uberblocks.iter().take(ROOTS_TRIED).collect(),
        };
        let notices = assembled.notices.clone();
        let mut unreadable = Vec::new();
        let mut first = None;
        for uberblock in tried {
            match read_root(&store, uberblock) {
                Ok(root) => {
                    let store = self.with_sectors_of(&root, assembled, store)?;
                    let (uberblock, spans) = (*uberblock, assembled.devices.spans());
                    return Ok(TxgView {
                        store,
                        root,
                        uberblock,
                        spans,
                        unreadable,
                        notices,
                        newest,
                    });
                }
                Err(error) => {
                    unreadable.push(error.to_string());
                    first.get_or_insert(error);
                }
            }
        }
        Err(first.unwrap_or_else(|| {
            let known: Vec<String> = uberblocks.iter().map(|one| one.txg.to_string()).collect();
            let text = format!(
                "there is no uberblock of txg {}; there are those of {}",
                txg.unwrap_or(0),
                known.join(", ")
            );
            Error::new(ErrorKind::NotFound, text)
        }))
    }

    fn store(&self, assembled: &AssembledPool) -> Result<Store> {
        let owner = open_owner(&self.cache, OwnerCaching::All)?;
        let (devices, cache) = (Arc::clone(&assembled.devices), Arc::clone(&self.cache));
        Ok(Store::new(devices, cache, owner, true, IN_FLIGHT_BYTES))
    }

    /// If the sector size was a guess, reopens the store with the one in the root block.
    fn with_sectors_of(&self, root: &RootPhys, was: &AssembledPool, store: Store) -> Result<Store> {
        let shift = root.space.sector_shift;
        if !was.sectors_guessed || !(9..=12).contains(&shift) || store.sector_bytes() == 1 << shift
        {
            return Ok(store);
        }
        self.store(&self.assemble(Some(1 << shift))?)
    }

    /// Returns all uberblocks of the pool, with the errors of reading their root blocks.
    pub(super) fn readable_roots(&self) -> Result<Vec<(u64, BlockPtrInfo, Option<String>)>> {
        let assembled = match self.assemble(None) {
            Ok(assembled) => assembled,
            Err(error) if error.kind() == ErrorKind::NoMemory => return Err(error),
            Err(_) => return Ok(Vec::new()),
        };
        let store = self.store(&assembled)?;
        let roots = assembled.uberblocks.iter().map(|uberblock| {
            let problem = read_root(&store, uberblock).err().map(|error| error.to_string());
            (uberblock.txg, BlockPtrInfo::of(&uberblock.root), problem)
        });
        Ok(roots.collect())
    }
}

fn newest_of(assembled: &AssembledPool) -> Result<u64> {
    let none = || Error::new(ErrorKind::NotAPool, "the devices hold no uberblock");
    assembled.uberblocks.first().map(|newest| newest.txg).ok_or_else(none)
}

impl TxgView {
    /// Returns an object set by name.
    pub(super) fn set(&self, name: ObjsetName<'_>) -> Result<OpenObjset> {
        match name {
            ObjsetName::Own => self.own(),
            ObjsetName::Dataset(name) => {
                let (_, phys) = self.dataset(name)?;
                self.set_of(&phys.objset, format!("dataset {name}"))
            }
        }
    }

    /// Returns the pool's own objects.
    pub(super) fn own(&self) -> Result<OpenObjset> {
        self.set_of(&self.root.mos, ObjsetName::Own.to_string())
    }

    fn set_of(&self, phys: &ObjsetPhys, what: String) -> Result<OpenObjset> {
        let tree = dnode_tree(phys).map_err(|error| error.doing(&what))?;
        Ok(OpenObjset { store: self.store.clone(), tree, what })
    }

    /// Returns the names of all datasets and their object numbers.
    pub(super) fn dataset_names(&self, damage: &mut Damage) -> Result<Vec<(String, u64)>> {
        let number = self.root.datasets.get();
        let doing = |error: Error| error.doing("the directory of datasets");
        let dnode = self.own()?.dnode(number).map_err(doing)?;
        let inline = InlineInfo::read(dnode.inline()).map_err(doing)?;
        let mut entries = inline.entries;
        if inline.is_fat {
            let tree = DataFields::tree_of(&dnode).map_err(doing)?;
            for (ptr, block) in self.data_pointers(&tree, damage) {
                let leaf = self.store.read(&ptr, Attributes::METADATA.once());
                let role = ZapBlock::of(block);
                match leaf.and_then(|leaf| block_entries(role, &leaf)) {
                    Ok(found) => entries.extend(found),
                    Err(error) => damage.note(error.doing(role)),
                }
                if entries.len() > DATASETS_MAX {
                    let text = format!("has more than {DATASETS_MAX} datasets");
                    return Err(doing(Error::new(ErrorKind::Corrupt, text)));
                }
            }
        }
        let mut names = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            let name = String::from_utf8_lossy(&name).into_owned();
            match <[u8; 8]>::try_from(&*value) {
                Ok(number) => names.push((name, u64::from_le_bytes(number))),
                Err(_) => damage.note(format_args!("dataset {name}: has an invalid object number")),
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns a dataset and its object number.
    pub(super) fn dataset(&self, name: &str) -> Result<(u64, DatasetPhys)> {
        let mut damage = Damage::default();
        let names = self.dataset_names(&mut damage)?;
        let Some((_, number)) = names.iter().find(|(known, _)| known == name) else {
            let known: Vec<&str> = names.iter().map(|(name, _)| &**name).collect();
            // The dataset may be in a damaged part.
            let (kind, damage) = match damage.listed.first() {
                None => (ErrorKind::NotFound, String::new()),
                Some(first) => (ErrorKind::Corrupt, format!("; but {first}")),
            };
            let text =
                format!("there is no dataset {name}; there are: {}{damage}", known.join(", "));
            return Err(Error::new(kind, text));
        };
        Ok((*number, self.dataset_at(name, *number)?))
    }

    pub(super) fn dataset_at(&self, name: &str, number: u64) -> Result<DatasetPhys> {
        let doing = |error: Error| error.doing(format_args!("dataset {name}"));
        let dnode = self.own()?.dnode(number).map_err(doing)?;
        let phys = DatasetPhys::read_from_bytes(dnode.attributes()).ok();
        let phys = phys.filter(|_| dnode.object_kind() == Some(ObjectKind::Dataset));
        phys.ok_or_else(|| {
            let text = format!("object {number} is not a dataset");
            doing(Error::new(ErrorKind::Corrupt, text))
        })
    }

    /// Reads all that an import needs of the space maps.
    pub(super) fn check_space_maps(&self) -> Result<()> {
        let reader = Box::new(self.store.clone());
        Space::load(&self.root.space, &self.spans, reader)?.load_metaslabs()
    }

    /// Reads the topmost block of an object set.
    pub(super) fn check_objset(&self, name: &str, phys: &ObjsetPhys) -> Result<()> {
        if phys.root.is_hole() {
            return Ok(());
        }
        let read = self.store.read(&phys.root, Attributes::METADATA.once());
        read.map(drop).map_err(|error| error.doing(format_args!("dataset {name}: its dnodes")))
    }

    /// Visits all pointers of a tree except holes, parents first.
    pub(super) fn walk(
        &self,
        tree: &Tree,
        damage: &mut Damage,
        visit: &mut dyn FnMut(&BlockPtrPhys, u64) -> ControlFlow<()>,
    ) {
        let mut left = BLOCKS_MAX;
        let mut bounded = |ptr: &BlockPtrPhys, block: u64| {
            left -= 1;
            match left == 0 || visit(ptr, block).is_break() {
                true => Err(left == 0),
                false => Ok(()),
            }
        };
        let mut damaged = |ptr: &BlockPtrPhys, block: u64, error: Error| {
            damage.note(format_args!("level {}, block {block}: {error}", ptr.level));
        };
        let walked = tree::walk(&self.store, &tree.root, 0, &mut bounded, &mut damaged);
        if walked == Err(true) {
            damage.note(format_args!("more than {BLOCKS_MAX} blocks: the rest was not read"));
        }
    }

    /// Returns the pointers of all data blocks of a small tree.
    fn data_pointers(&self, tree: &Tree, damage: &mut Damage) -> Vec<(BlockPtrPhys, u64)> {
        let mut found = Vec::new();
        self.walk(tree, damage, &mut |ptr, block| {
            if ptr.level == 0 {
                found.push((*ptr, block));
            }
            match found.len() > DATASETS_MAX {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        found
    }
}

impl OpenObjset {
    /// Returns the dnode of an object in use.
    pub(super) fn dnode(&self, number: u64) -> Result<DnodePhys> {
        let doing = |error: Error| error.doing(&self.what);
        let block = number / DNODES_PER_BLOCK as u64;
        let ptr = tree::lookup(&self.store, &self.tree, block, Wait::Allowed).map_err(doing)?;
        let mut dnode = None;
        if !ptr.is_hole() {
            let content = self.store.read(&ptr, Attributes::METADATA.once()).map_err(doing)?;
            dnode = dnode_at(&content, (number % DNODES_PER_BLOCK as u64) as usize);
        }
        match dnode.filter(|dnode| dnode.kind != 0) {
            Some(dnode) => Ok(dnode),
            None => {
                let text = format!("there is no object {number}");
                Err(doing(Error::new(ErrorKind::NotFound, text)))
            }
        }
    }
}
