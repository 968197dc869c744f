//! Runs a workload on a recorded device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use forebay_fs::{
    FallocateMode, FileKind, FileSystem, Handle, Ino, NewNode, SetAttr, Time, XattrMode,
};
use forebay_io::Device;
use forebay_io::record::{RecordDevice, RecordOptions, Recording};

use super::Medium;
use super::device::GateDevice;
use super::step::{self, Step, Verb, Workload};
use crate::common::ME;
use crate::model::Model;

/// A tunable and its smallest value.
const SMALL_LOG: (&str, &str) = ("log_commit_max_bytes", "64K");

/// Modification and change time.
pub(super) type Times = (Time, Time);

/// Files whose content must not be older than a change of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ordered {
    Nothing,
    Files(Vec<usize>),
    Everything,
}

/// A state between two changes.
pub(super) struct Moment {
    pub(super) model: Model,
    /// Device position before the change that led here.
    pub(super) begun: usize,
    /// Times of each node; `None` between two changes of one operation.
    pub(super) times: Option<BTreeMap<usize, Times>>,
    /// Files that the change orders before itself.
    pub(super) ordered: Ordered,
}

/// What a persistence point makes durable besides names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persisted {
    /// Content and times of all files.
    All,
    /// Content and times of this node.
    Node(usize),
    /// Content of this node.
    Data(usize),
}

/// A request that made changes durable.
pub(super) struct PersistencePoint {
    pub(super) what: Persisted,
    /// The newest moment at the call.
    pub(super) moment: usize,
    /// Device positions at the call and at the return.
    pub(super) begun: usize,
    pub(super) done: usize,
}

/// A workload that was run.
pub(super) struct Run {
    pub(super) recording: Recording,
    pub(super) moments: Vec<Moment>,
    pub(super) points: Vec<PersistencePoint>,
    /// Device positions: the start, the start of the last persistence point, the end of the last
    /// step, and the end after the file system was closed.
    pub(super) start: usize,
    pub(super) last_point: usize,
    pub(super) end: usize,
    pub(super) closed: usize,
}

/// How a workload is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    /// The file system keeps all inodes in memory, as if they were open.
    pub(super) holds_inodes: bool,
    /// An fsync of much content commits a group.
    pub(super) small_log: bool,
}

struct Running<'a> {
    fs: &'a FileSystem,
    device: &'a RecordDevice,
    gate: &'a Arc<GateDevice>,
    /// Waits for a group at the gate, which is this persistence point.
    commit: Option<(JoinHandle<()>, usize)>,
    moments: Vec<Moment>,
    points: Vec<PersistencePoint>,
    variant: Variant,
    held: Vec<Ino>,
}

/// Runs a workload from the initial state. `None` if a step is not possible.
pub(super) fn run(medium: &Medium, workload: &Workload, variant: Variant) -> Option<Run> {
    let options = RecordOptions { max_bytes: 256 << 20, base: Some(medium.initial.clone()) };
    let device = Arc::new(RecordDevice::new(Medium::device(&medium.initial), options));
    let tunables = if variant.small_log { &[SMALL_LOG][..] } else { &[] };
    let gate = Arc::new(GateDevice::new(Arc::clone(&device)));
    let fs = medium.mount_with(Arc::clone(&gate) as Arc<dyn Device>, false, tunables);
    // The first group after an import opens the log.
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    fs.setattr(Ino::ROOT, &set, ME).expect("a change");
    fs.pool().sync().expect("a group");
    let start = device.position();
    let mut running = Running {
        fs: &fs,
        device: &device,
        gate: &gate,
        commit: None,
        moments: Vec::new(),
        points: Vec::new(),
        variant,
        held: Vec::new(),
    };
    running.begin(medium.model.clone());
    let done = workload.0.iter().enumerate().all(|(at, step)| running.step(at, step).is_some());
    let last_point = running.points.last().map(|point| point.begun);
    let end = device.position();
    running.end_commit();
    let (moments, points) =
        (std::mem::take(&mut running.moments), std::mem::take(&mut running.points));
    drop(running);
    Medium::unmount(fs);
    let recording = device.recording();
    assert!(recording.is_complete(), "the recording exceeds its bound");
    let last_point = last_point.unwrap_or(end);
    let closed = recording.len();
    done.then_some(Run { recording, moments, points, start, last_point, end, closed })
}

impl Drop for Running<'_> {
    /// After a panic, nothing waits forever.
    fn drop(&mut self) {
        self.gate.open();
    }
}

impl Running<'_> {
    fn begin(&mut self, mut model: Model) {
        for at in 1..model.nodes.len() {
            let (dir, name) = place(&model, at).expect("initial nodes have names");
            let ino = self.fs.lookup(model.nodes[dir].ino, &name).expect("it is there").attr.ino;
            model.nodes[at].ino = ino;
            self.looked_up(ino);
        }
        let times = Some(self.times(&model));
        let ordered = Ordered::Nothing;
        self.moments.push(Moment { model, begun: 0, times, ordered });
    }

    fn looked_up(&mut self, ino: Ino) {
        match self.variant.holds_inodes {
            true => self.held.push(ino),
            false => self.fs.forget(ino, 1),
        }
    }

    fn model(&self) -> &Model {
        &self.moments.last().expect("a first moment").model
    }

    fn times(&self, model: &Model) -> BTreeMap<usize, Times> {
        let alive = (0..model.nodes.len()).filter(|node| model.nodes[*node].nlink > 0);
        alive
            .map(|node| {
                let attr = self.fs.getattr(model.nodes[node].ino).expect("it is there");
                (node, (attr.mtime, attr.ctime))
            })
            .collect()
    }

    /// Does a step, in the file system and in the model.
    fn step(&mut self, at: usize, step: &Step) -> Option<()> {
        let mut states = step::apply(step, at, self.model())?;
        if step.verb.is_persistence() {
            self.persist(step.verb, step.paths.first().map(|path| &**path));
            return Some(());
        }
        let begun = self.device.position();
        let ordered = self.ordered(step);
        let node = |path: usize| step::find(self.model(), &step.paths[path]);
        let subject = node(0);
        if let Some(ino) = self.execute(step, at) {
            let made = node(step.paths.len() - 1).is_none().then(|| self.model().nodes.len());
            if let Some(made) = made.filter(|_| step.verb != Verb::Link) {
                states.iter_mut().for_each(|model| model.nodes[made].ino = ino);
            }
            self.looked_up(ino);
        }
        let last = states.len() - 1;
        for (number, model) in states.into_iter().enumerate() {
            let times = (number == last).then(|| self.times(&model));
            self.moments.push(Moment { model, begun, times, ordered: ordered.clone() });
        }
        if let Some(node) = subject.filter(|_| step.verb == Verb::WriteDsync) {
            self.persist_node(Persisted::Data(node), node);
        }
        Some(())
    }

    /// Files whose content goes with the names that a step changes.
    fn ordered(&self, step: &Step) -> Ordered {
        let count = match step.verb {
            Verb::Link | Verb::Rename | Verb::Replace => 1,
            Verb::Exchange => 2,
            _ => return Ordered::Nothing,
        };
        let paths = step.paths.iter().take(count);
        let nodes: Vec<usize> = paths.filter_map(|path| step::find(self.model(), path)).collect();
        let is = |kind| nodes.iter().any(|node| self.model().nodes[*node].kind == kind);
        match is(FileKind::Directory) {
            true => Ordered::Everything,
            false => Ordered::Files(nodes),
        }
    }

    fn persist(&mut self, verb: Verb, path: Option<&str>) {
        let node = path.and_then(|path| step::find(self.model(), path)).unwrap_or(0);
        match verb {
            Verb::Fsync => self.persist_node(Persisted::Node(node), node),
            Verb::Fdatasync => self.persist_node(Persisted::Data(node), node),
            Verb::CommitBegin => self.begin_commit(),
            _ => {
                self.end_commit();
                self.persist_with(Persisted::All, |fs| fs.pool().sync().expect("a group"));
            }
        }
    }

    /// Begins a group, and returns when it waits at the gate.
    fn begin_commit(&mut self) {
        self.end_commit();
        self.gate.shut();
        let (moment, begun) = (self.moments.len() - 1, self.device.position());
        let (pool, gate) = (Arc::clone(self.fs.pool()), Arc::clone(self.gate));
        let thread = std::thread::spawn(move || {
            pool.sync().expect("a group");
            gate.note_commit();
        });
        self.gate.wait_for_commit();
        let point = PersistencePoint { what: Persisted::All, moment, begun, done: usize::MAX };
        self.points.push(point);
        self.commit = Some((thread, self.points.len() - 1));
    }

    /// Lets the group pass, if one waits.
    fn end_commit(&mut self) {
        let Some((thread, point)) = self.commit.take() else { return };
        self.gate.open();
        thread.join().expect("a group");
        self.points[point].done = self.device.position();
    }

    fn persist_node(&mut self, what: Persisted, node: usize) {
        if self.variant.small_log {
            // The fsync may wait for the group.
            self.end_commit();
        }
        let (ino, kind) = (self.model().nodes[node].ino, self.model().nodes[node].kind);
        self.persist_with(what, |fs| match kind {
            FileKind::Directory => fs.fsyncdir(ino).expect("an fsync"),
            _ => fs.fsync(ino, matches!(what, Persisted::Data(_))).expect("an fsync"),
        });
    }

    fn persist_with(&mut self, what: Persisted, call: impl FnOnce(&FileSystem)) {
        let (moment, begun) = (self.moments.len() - 1, self.device.position());
        call(self.fs);
        let done = self.device.position();
        self.points.push(PersistencePoint { what, moment, begun, done });
    }

    /// Does an operation. Returns the inode if it was looked up.
    fn execute(&self, step: &Step, at: usize) -> Option<Ino> {
        let (fs, model) = (self.fs, self.model());
        let ino = |path: &str| model.nodes[step::find(model, path).expect("it is there")].ino;
        let place = |path: &'_ str| {
            let (dir, name) = step::parent(model, path).expect("a directory");
            (model.nodes[dir].ino, name.to_vec())
        };
        let first = &*step.paths[0];
        match step.verb {
            Verb::Create | Verb::Mkdir | Verb::Symlink | Verb::SymlinkLong => {
                let target = step::value(step.verb, at);
                let (kind, mode, target) = match step.verb {
                    Verb::Create => (FileKind::File, 0o644, None),
                    Verb::Mkdir => (FileKind::Directory, 0o755, None),
                    _ => (FileKind::Symlink, 0, Some(&target[..])),
                };
                let (dir, name) = place(first);
                let node = NewNode { kind, mode, rdev: 0, target };
                return Some(fs.make(dir, &name, &node, ME).expect("a new node").attr.ino);
            }
            Verb::Link => {
                let (dir, name) = place(&step.paths[1]);
                return Some(fs.link(ino(first), dir, &name).expect("a link").attr.ino);
            }
            Verb::Unlink => {
                let (dir, name) = place(first);
                fs.unlink(dir, &name).expect("an unlink");
            }
            Verb::Rmdir => {
                let (dir, name) = place(first);
                fs.rmdir(dir, &name).expect("an rmdir");
            }
            Verb::Rename | Verb::Replace | Verb::Exchange => {
                let ((from, name), (to, new_name)) = (place(first), place(&step.paths[1]));
                let mode = step::rename_mode(step.verb);
                fs.rename(from, &name, to, &new_name, mode).expect("a rename");
            }
            verb => self.change_inode(verb, at, ino(first)),
        }
        None
    }

    fn change_inode(&self, verb: Verb, at: usize, ino: Ino) {
        let (fs, handle) = (self.fs, Handle(ino.0));
        let xattr = step::xattr(verb);
        let set = |set| {
            fs.setattr(ino, &set, ME).expect("new attributes");
        };
        match verb {
            Verb::Chmod => set(SetAttr { mode: Some(step::mode(at)), ..SetAttr::default() }),
            Verb::Removexattr => fs.removexattr(ino, xattr).expect("removes"),
            Verb::Setxattr | Verb::SetxattrLong => {
                let value = step::value(verb, at);
                fs.setxattr(ino, xattr, &value, XattrMode::Either).expect("an attribute");
            }
            verb => {
                let (offset, len) = verb.range(fs.getattr(ino).expect("it is there").size);
                let range = |mode| fs.fallocate(ino, handle, offset, len, mode, ME).expect("room");
                match verb {
                    Verb::Fallocate => range(FallocateMode::Allocate { keep_size: false }),
                    Verb::FallocateKeep => range(FallocateMode::Allocate { keep_size: true }),
                    Verb::Punch => range(FallocateMode::Punch),
                    Verb::Zero => range(FallocateMode::Zero { keep_size: false }),
                    Verb::ZeroKeep => range(FallocateMode::Zero { keep_size: true }),
                    Verb::Shorten | Verb::Lengthen => {
                        set(SetAttr { size: Some(len), ..SetAttr::default() });
                    }
                    _ => crate::common::write(fs, ino, offset, &step::data(at, len)),
                }
            }
        }
    }
}

/// Directory and name of a node.
fn place(model: &Model, node: usize) -> Option<(usize, Vec<u8>)> {
    model.nodes.iter().enumerate().find_map(|(dir, above)| {
        let name = above.names.iter().find(|(_, child)| **child == node)?.0;
        Some((dir, name.clone()))
    })
}
