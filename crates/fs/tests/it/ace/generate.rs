//! All steps that are possible in a state.

use std::collections::HashMap;

use forebay_base::rng::SmallRng;
use forebay_fs::FileKind;

use super::step::{self, ATTRIBUTES, CONTENT, Step, Verb, Workload};
use crate::model::Model;

/// Names that a workload gives, beside those that there are at the start.
const NEW: &str = "new";
const NEW_DIRECTORY: &str = "C";
/// The two files at the start: directory and name.
const FILES: [(&str, &str); 2] = [("A", "foo"), ("B", "bar")];

/// Paths of a state by kind; of a file with several names only the first.
struct Paths {
    files: Vec<String>,
    symlinks: Vec<String>,
    /// Without the root.
    dirs: Vec<String>,
    free: Vec<String>,
}

impl Paths {
    fn of(model: &Model) -> Self {
        let mut paths =
            Self { files: Vec::new(), symlinks: Vec::new(), dirs: Vec::new(), free: Vec::new() };
        let mut seen = Vec::new();
        let mut pending = vec![(String::new(), 0)];
        while let Some((path, at)) = pending.pop() {
            let below = |name: &str| match path.is_empty() {
                true => name.to_owned(),
                false => format!("{path}/{name}"),
            };
            for (name, child) in model.nodes[at].names.iter().rev() {
                pending.push((below(&String::from_utf8_lossy(name)), *child));
            }
            match model.nodes[at].kind {
                FileKind::Directory if at > 0 => {
                    if let Some((_, name)) = FILES.iter().find(|file| file.0 == path) {
                        let free = [name, NEW].into_iter().map(below);
                        paths.free.extend(free.filter(|path| step::find(model, path).is_none()));
                    }
                    paths.dirs.push(path);
                }
                FileKind::File if !seen.contains(&at) => {
                    seen.push(at);
                    paths.files.push(path);
                }
                FileKind::Symlink => paths.symlinks.push(path),
                _ => {}
            }
        }
        paths
    }
}

/// All operations that are possible as step `at`. Without `symmetric`, only those that begin with
/// the first of two files or directories that are alike.
pub(super) fn operations(model: &Model, at: usize, symmetric: bool) -> Vec<Step> {
    let paths = Paths::of(model);
    let mut all = Vec::new();
    let mut one = |verb, path: &str| all.push(Step::new(verb, &[path]));
    for file in &paths.files {
        CONTENT.iter().chain(&ATTRIBUTES).for_each(|verb| one(*verb, file));
        one(Verb::Unlink, file);
    }
    for dir in &paths.dirs {
        [Verb::Setxattr, Verb::SetxattrLong, Verb::Rmdir].iter().for_each(|verb| one(*verb, dir));
    }
    paths.symlinks.iter().for_each(|link| one(Verb::Unlink, link));
    for path in &paths.free {
        [Verb::Create, Verb::Mkdir, Verb::Symlink, Verb::SymlinkLong]
            .iter()
            .for_each(|verb| one(*verb, path));
    }
    let there = || paths.files.iter().chain(&paths.dirs).chain(&paths.symlinks);
    for from in there() {
        for to in paths.free.iter() {
            all.push(Step::new(Verb::Rename, &[from, to]));
            all.push(Step::new(Verb::Link, &[from, to]));
        }
        for to in there() {
            all.push(Step::new(Verb::Replace, &[from, to]));
            if from < to {
                all.push(Step::new(Verb::Exchange, &[from, to]));
            }
        }
    }
    for dir in &paths.dirs {
        all.push(Step::new(Verb::Rename, &[dir, NEW_DIRECTORY]));
    }
    let is_first = |step: &Step| symmetric || !step.paths[0].starts_with(FILES[1].0);
    let is_possible = |step: &Step| step::apply(step, at, model).is_some();
    all.into_iter().filter(|step| is_first(step) && is_possible(step)).collect()
}

/// The persistence points that may follow an operation: nothing, `fsync` of its file and its
/// directory, `fdatasync`, and a group, also one that waits. `after` is the state after the
/// operation.
pub(super) fn persistence(step: &Step, after: &Model) -> Vec<Option<Step>> {
    let paths = Paths::of(after);
    let is_file = |path: &&String| {
        step::find(after, path).is_some_and(|node| after.nodes[node].kind == FileKind::File)
    };
    // After an unlink: the other file.
    let file = step.paths.iter().rev().find(is_file).or(paths.files.first());
    let path = step.paths.last().expect("an operation has a path");
    let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let commits = [Verb::Commit, Verb::CommitBegin].map(|verb| Some(Step::new(verb, &[])));
    let mut all = vec![None];
    all.extend(commits);
    all.push(Some(Step::new(Verb::Fsync, &[dir])));
    all.extend(file.map(|file| Some(Step::new(Verb::Fsync, &[file]))));
    all.extend(file.map(|file| Some(Step::new(Verb::Fdatasync, &[file]))));
    all
}

/// All workloads of two operations, each followed by a persistence point or, the first, by nothing.
/// Nothing after the second makes no difference: a crash before its persistence point shows the
/// same.
pub(super) struct Pairs {
    firsts: Vec<First>,
    /// Positions in `firsts`, in its points, in its seconds, and in the points of that.
    all: Vec<[u16; 4]>,
}

/// A first operation, and what may follow it.
struct First {
    step: Step,
    points: Vec<Option<Step>>,
    seconds: Vec<(Step, Vec<Step>)>,
}

impl Pairs {
    pub(super) fn new(model: &Model) -> Self {
        let (mut firsts, mut all) = (Vec::new(), Vec::new());
        for (number, step) in operations(model, 0, false).into_iter().enumerate() {
            let after = step::state_after(&step, 0, model);
            let points = persistence(&step, &after);
            let mut seconds = Vec::new();
            for (second_number, second) in operations(&after, 2, true).into_iter().enumerate() {
                let last = persistence(&second, &step::state_after(&second, 2, &after));
                let mut last: Vec<Step> = last.into_iter().flatten().collect();
                // At the end it is like any other group.
                last.retain(|point| point.verb != Verb::CommitBegin);
                for point in 0..points.len() {
                    let of = |last| [number, point, second_number, last].map(|n| n as u16);
                    all.extend((0..last.len()).map(of));
                }
                seconds.push((second, last));
            }
            firsts.push(First { step, points, seconds });
        }
        Self { firsts, all }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Puts the workloads in random order, those first that differ in verbs. Some verbs have many
    /// more paths than others.
    pub(super) fn shuffle(&mut self, rng: &mut SmallRng) {
        let mut mix = |all: &mut [[u16; 4]]| {
            for at in (1..all.len()).rev() {
                all.swap(at, rng.below(at as u64 + 1) as usize);
            }
        };
        mix(&mut self.all);
        let mut counts: HashMap<Vec<Verb>, usize> = HashMap::new();
        let mut ranks: HashMap<[u16; 4], usize> = HashMap::new();
        for (at, place) in self.all.iter().enumerate() {
            let verbs = self.get(at).0.iter().map(|step| step.verb).collect();
            let count = counts.entry(verbs).or_default();
            ranks.insert(*place, *count);
            *count += 1;
        }
        // Those that were first of many came early.
        mix(&mut self.all);
        self.all.sort_by_key(|place| ranks[place]);
    }

    pub(super) fn get(&self, at: usize) -> Workload {
        let [first, point, second, last] = self.all[at].map(usize::from);
        let first = &self.firsts[first];
        let (second, points) = &first.seconds[second];
        let mut steps = vec![first.step.clone()];
        steps.extend(first.points[point].clone());
        steps.extend([second.clone(), points[last].clone()]);
        Workload(steps)
    }
}

/// A random workload.
pub(super) fn walk(model: &Model, length: usize, rng: &mut SmallRng) -> Workload {
    let (mut steps, mut state) = (Vec::new(), model.clone());
    for _ in 0..length {
        let mut possible = operations(&state, steps.len(), true);
        possible.sort_by_key(|step| step.verb);
        // Some verbs have many more paths than others.
        let mut verbs: Vec<Verb> = possible.iter().map(|step| step.verb).collect();
        verbs.dedup();
        let verb = verbs[rng.below(verbs.len() as u64) as usize];
        let of_verb: Vec<&Step> = possible.iter().filter(|step| step.verb == verb).collect();
        let step = of_verb[rng.below(of_verb.len() as u64) as usize];
        state = step::state_after(step, steps.len(), &state);
        steps.push(step.clone());
        let mut points = persistence(step, &state);
        // Every second operation is followed by nothing.
        if rng.below(2) == 0 {
            steps.extend(points.swap_remove(rng.below(points.len() as u64) as usize));
        }
    }
    Workload(steps)
}
