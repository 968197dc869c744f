//! The USDT probes: the program's ELF notes, the documentation and the scripts name the same ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};

/// The type of a note that describes a probe.
const STAPSDT: u32 = 3;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Number of arguments of each probe, by name.
type Probes = BTreeMap<String, usize>;

/// The probes that the program has, from its ELF notes.
fn in_program() -> Probes {
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_forebay")).unwrap();
    let program = object::File::parse(&*bytes).unwrap();
    let code = program.section_by_name(".text").unwrap();
    let code = code.address()..code.address() + code.size();
    let notes = program.section_by_name(".note.stapsdt").unwrap();
    let mut notes = notes.data().unwrap();
    let mut found = Probes::new();
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
    while !notes.is_empty() {
        let (name_bytes, bytes) = (word(notes) as usize, word(&notes[4..]) as usize);
        assert_eq!((word(&notes[8..]), &notes[12..20]), (STAPSDT, &b"stapsdt\0"[..]));
        let at = 12 + name_bytes.next_multiple_of(4);
        let (addresses, texts) = notes[at..at + bytes].split_at(3 * 8);
        let location = u64::from_le_bytes(addresses[..8].try_into().unwrap());
        let mut texts = texts.split(|byte| *byte == 0).map(|t| std::str::from_utf8(t).unwrap());
        let [provider, name, arguments] = std::array::from_fn(|_| texts.next().unwrap());
        assert_eq!(provider, "forebay");
        // The linker leaves notes of functions that it dropped.
        if code.contains(&location) {
            let arguments = arguments.split_whitespace().count();
            let other = found.insert(name.to_owned(), arguments);
            assert!(other.is_none_or(|other| other == arguments), "{name}");
        }
        notes = &notes[at + bytes.next_multiple_of(4)..];
    }
    found
}

/// The probes in the table of `docs/insight.md`.
fn in_docs() -> Probes {
    let docs = std::fs::read_to_string(file("docs/insight.md")).unwrap();
    let rows = docs.lines().skip_while(|line| !line.starts_with("| probe |")).skip(2);
    let probe = |row: &str| {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let name = cells.next().unwrap().trim_matches('`').to_owned();
        (name, cells.nth(1).unwrap().split(", ").count())
    };
    rows.take_while(|row| row.starts_with('|')).map(probe).collect()
}

#[test]
fn the_docs_list_the_programs_probes_with_their_arguments() {
    let program = in_program();
    assert_eq!(program, in_docs());
    assert!(program.len() >= 20, "{program:?}");
}

#[test]
fn scripts_use_probes_and_arguments_that_exist() {
    let probes = in_docs();
    let mut used = Probes::new();
    for script in std::fs::read_dir(file("packaging/bpftrace")).unwrap() {
        let path = script.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut arguments = 0;
        for line in text.lines().filter(|line| !line.starts_with("//")) {
            if let Some((_, rest)) = line.split_once("usdt:*:forebay:") {
                let name = rest.split([' ', '/']).next().unwrap();
                let Some(has) = probes.get(name) else { panic!("{path:?}: no probe {name}") };
                used.insert(name.to_owned(), *has);
                arguments = *has;
            }
            for (at, _) in line.match_indices("arg") {
                let number = line[at + 3..].split(|c: char| !c.is_ascii_digit()).next().unwrap();
                let number: usize = number.parse().unwrap();
                assert!(number < arguments, "{path:?}: {line}");
            }
        }
    }
    assert_eq!(used, probes, "each probe is of use to a script");
}
