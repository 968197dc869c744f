//! Runs the benches with small numbers under `cargo test`, so that they never rot.

use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-bench")).args(args).output().expect("the bench starts")
}

#[test]
fn every_bench_runs_small() {
    let output = bench(&["smoke", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let lines = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let names = [
        "cached-read",
        "evict",
        "index",
        "freeing",
        "overflow",
        "memory",
        "strided-read",
        "device",
        "r5",
        "rebuild",
        "restart",
        "hybrid",
        "sim",
    ];
    for name in names {
        let head = format!("{{\"bench\":\"{name}\",\"subject\":\"");
        assert!(lines.lines().any(|line| line.starts_with(&head)), "no row of {name}");
    }
    for line in lines.lines() {
        assert!(line.starts_with('{') && line.ends_with('}'), "a flat object a line: {line}");
        assert_eq!(line.matches('{').count(), 1, "a flat object a line: {line}");
    }
}

#[test]
fn a_table_has_a_row_a_subject() {
    let output = bench(&["r5", "--capacity", "500"]);
    let table = String::from_utf8(output.stdout).expect("a table is UTF-8");
    assert!(table.starts_with("subject"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("textbook-lru")), "{table}");
}

#[test]
fn a_trace_is_simulated_and_told() {
    let folder = std::env::temp_dir().join(format!("forebay-bench-sim-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    // Twice through 40 keys: with space for all, half of the accesses hit; LRU with space for 32
    // never hits.
    let keys: String = (0..80).map(|access| format!("{}\n", access % 40)).collect();
    let path = folder.join("twice.keys");
    std::fs::write(&path, keys).expect("a trace");
    let path = path.to_str().expect("a path in UTF-8");
    let run = |more: &[&str]| {
        let args = [&["sim", "--trace", path, "--policy", "forebay,lru,opt"][..], more].concat();
        let output = bench(&args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).expect("results are UTF-8")
    };
    let lines = run(&["--json", "--capacity", "0.1%,1%,100%"]);
    assert_eq!(lines.lines().count(), 6, "equal capacities are simulated once: {lines}");
    let row = |policy: &str, capacity: u64| {
        let head = format!(
            "{{\"bench\":\"sim\",\"subject\":\"{policy}\",\"threads\":1,\"trace\":\"twice\","
        );
        let rest = format!("\"capacity\":{capacity},\"policy\":\"{policy}\",\"hit_ratio\":");
        let line = lines.lines().find(|line| line.starts_with(&head) && line.contains(&rest));
        let (_, ratio) = line.and_then(|line| line.split_once(&rest)).expect("a row");
        ratio.trim_end_matches('}').parse::<f64>().expect("a ratio")
    };
    assert_eq!((row("lru", 32), row("lru", 40), row("forebay", 40)), (0.0, 0.5, 0.5));
    assert_eq!((row("opt", 32), row("opt", 40)), (0.4, 0.5));
    let table = run(&["--capacity", "32,40"]);
    assert!(table.contains("mean_hit_ratio") && table.contains("0.4500"), "{table}");
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

/// The rows of a bench that prints JSON.
fn rows(args: &[&str]) -> Result<Vec<serde_json::Value>, String> {
    let output = bench(args);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let lines = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    Ok(lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

#[test]
fn a_rebuild_with_direct_io_reads_the_disk() {
    const ENTRIES: u64 = 4000;
    /// Bytes of an entry in the log.
    const RECORD_BYTES: u64 = 16;
    let (entries, folder) = (ENTRIES.to_string(), env!("CARGO_TARGET_TMPDIR"));
    let args = ["rebuild", "--json", "--reps", "1", "--subjects", "forebay", "--entries", &entries];
    let rows = match rows(&[&args[..], &["--folder", folder, "--direct"]].concat()) {
        Ok(rows) => rows,
        Err(said) => {
            assert!(said.contains("does not support direct I/O"), "{said}");
            return forebay_base::testing::skip("direct", said);
        }
    };
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["direct"], true);
    assert_eq!(rows[0]["found_share"].as_f64(), Some(1.0));
    let read = rows[0]["read_bytes"].as_f64().expect("the kernel counts bytes read");
    assert!(read >= (ENTRIES * RECORD_BYTES) as f64, "{read} bytes read");
}

#[test]
fn an_l2_serves_what_memory_has_no_space_for() {
    let pool = ["--device-size", "512MiB", "--preload", "40000", "--cache", "6MiB", "--delay", "1"];
    let cycle = ["--cycle", "1", "--iteration", "500", "--removals", "random"];
    let l2 = ["--l2", "mem", "--l2-size", "256MiB", "--l2-warm"];
    let subjects = ["--subjects", "no-change-buffer,no-change-buffer-l2"];
    let args = ["create", "--json", "--reps", "1"];
    let rows = rows(&[&args[..], &pool, &cycle, &l2, &subjects].concat()).expect("the bench runs");
    let of = |subject: &str| {
        rows.iter().find(|row| row["subject"] == subject).expect("a row for each subject")
    };
    let waited =
        |subject: &str| of(subject)["destroy_reads_waited_for"].as_f64().expect("a figure");
    let (without, with) = (waited("no-change-buffer"), waited("no-change-buffer-l2"));
    let hits = of("no-change-buffer-l2")["l2_hits"].as_f64().expect("a figure");
    assert!(of("no-change-buffer")["l2_hits"].is_null());
    assert!(hits > 0.0 && 2.0 * with < without, "{hits} hits, {with} of {without} reads");
}

#[test]
fn wrong_input_is_explained() {
    for (args, word) in [
        (&["evict", "--subjects", "nothing"][..], "unknown subject `nothing`"),
        (&["evict", "--threads", "0"][..], "--threads 0"),
        (&["evict", "--seconds=-1"][..], "seconds"),
        (&["r5", "--capacity", "0"][..], "capacity"),
        (&["device", "--depths", "0"][..], "depths"),
        (&["device", "--file", "/nowhere/at/all"][..], "/nowhere/at/all"),
        (&["sim"][..], "--synthetic"),
        (&["sim", "--trace", "/nowhere/at/all"][..], "/nowhere/at/all"),
        (&["sim", "--synthetic", "nothing"][..], "zipf-0.8"),
        (&["sim", "--synthetic", "loop-2", "--policy", "nothing"][..], "forebay, "),
        (&["sim", "--synthetic", "loop-2", "--capacity", "0%"][..], "capacity"),
        (&["strided-read", "--subjects", "fio"][..], "unknown subject `fio`"),
        (&["create", "--subjects", "forebay-l2"][..], "--l2 mem"),
        (&["create", "--l2", "mem", "--l2-warm"][..], "--preload"),
        (&["rebuild", "--device", "/dev/null"][..], "--overwrite"),
        (&["rebuild", "--device", "/dev/null", "--overwrite"][..], "no block device"),
    ] {
        let output = bench(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(word), "{args:?} said {said:?}");
    }
}
