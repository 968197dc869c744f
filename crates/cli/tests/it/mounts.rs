//! Mounts: in the foreground and in the background, and every way in which they end.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::fixture::{Fixture, failed, fuse, is_mounted, mounted, root, signal, texts, wait_until};

#[test]
fn without_arguments_a_pool_is_made_and_mounted_until_a_signal() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let at = fixture.path("forebay-mnt");
    for (round, number) in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().enumerate() {
        let running = mounted(&fixture, &["mount"], &at);
        assert_eq!(fs::metadata(fixture.path("forebay.pool")).unwrap().len(), 10 << 30);
        if round > 0 {
            assert_eq!(fs::read(at.join("file")).unwrap(), vec![round as u8 - 1; 100_000]);
        }
        fs::write(at.join("file"), vec![round as u8; 100_000]).unwrap();
        running.signal(number);
        let output = running.wait();
        let (out, err) = texts(&output);
        assert!(output.status.success(), "{out}{err}");
        assert!(out.contains("mounted forebay/main at"), "{out}");
        assert!(out.contains("unmounted "), "{out}");
        assert!(!is_mounted(&at));
        let shown = fixture.ok(&["import", "--show", "forebay.pool"]);
        assert!(shown.contains("; exported"), "{shown}");
    }
    let checked = fixture.ok(&["check", "forebay.pool"]);
    assert!(checked.contains("1 directories, 1 other files"), "{checked}");
}

#[test]
fn it_ends_when_somebody_else_unmounts_it() {
    if !fuse() || !root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    assert!(Command::new("umount").arg(&at).status().unwrap().success());
    assert!(running.wait().status.success());
    let running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    fixture.ok(&["umount", "at"]);
    assert!(running.wait().status.success());
    let running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    fixture.ok(&["export", "tank"]);
    assert!(running.wait().status.success());
}

#[test]
fn one_process_in_the_background_has_several_pools() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    let places = [fixture.folder("a"), fixture.folder("b"), fixture.folder("c")];
    fixture.pool("one.img");
    fixture.pool("two.img");
    let said = fixture.ok(&["mount", "one.img", "a", "--daemon", "--memory", "256M"]);
    assert!(said.contains("mounted one/main at"), "{said}");
    fs::write(places[0].join("file"), b"one").unwrap();
    fixture.ok(&["mount", "two.img", "b", "--daemon", "--kernel-cache"]);
    fs::write(places[1].join("file"), b"two").unwrap();
    let twice = fixture.fails(&["mount", "one.img", "c", "--daemon"]);
    assert!(twice.contains("is mounted at") && twice.contains("forebay umount"), "{twice}");
    let foreground = fixture.fails(&["mount", "one.img", "c"]);
    assert!(
        foreground.contains("in use by process") && foreground.contains("--daemon"),
        "{foreground}"
    );
    let missing = fixture.fails(&["mount", "one", "c", "--daemon", "--dataset", "nothing"]);
    assert!(missing.contains("has no dataset nothing") && missing.contains("main"), "{missing}");

    let processes = fixture.processes();
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0]["memory_bytes"], 256 << 20);
    let listed = fixture.ok(&["list"]);
    assert!(listed.contains("kernel_cache") && listed.contains("rw,daemon"), "{listed}");
    let stats: serde_json::Value = serde_json::from_str(&fixture.ok(&["stats", "--json"])).unwrap();
    assert!(stats[0]["mounts"][0]["operations"].as_u64().unwrap() > 0, "{stats}");
    fixture.ok(&["cache", "flush", "one"]);
    assert_eq!(fs::read(places[0].join("file")).unwrap(), b"one");
    fixture.ok(&["check", "one"]);

    fixture.ok(&["umount", "one"]);
    assert!(!is_mounted(&places[0]) && is_mounted(&places[1]));
    // One that is in use: its file, then its folder.
    let file = fs::File::open(places[1].join("file")).unwrap();
    let busy = fixture.fails(&["umount", "b"]);
    assert!(busy.contains("busy") && busy.contains("--lazy"), "{busy}");
    fixture.ok(&["umount", "b", "--lazy"]);
    assert!(!is_mounted(&places[1]));
    drop(file);
    wait_until("the process ends", || fixture.processes().is_empty());

    for (pool, at, content) in [("two.img", "c", "two"), ("one.img", "b", "one")] {
        fixture.ok(&[
            "mount",
            pool,
            at,
            "--daemon",
            "--separate",
            "--memory",
            "192M",
            "--read-only",
        ]);
        assert_eq!(fs::read(fixture.path(at).join("file")).unwrap(), content.as_bytes());
        let refused = fs::write(fixture.path(at).join("other"), b"").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
    assert_eq!(fixture.processes().len(), 2);
    // Nobody joins those unasked.
    fixture.pool("three.img");
    fs::create_dir_all(fixture.path("d")).unwrap();
    fixture.ok(&["mount", "three.img", "d", "--daemon", "--memory", "192M"]);
    assert_eq!(fixture.processes().len(), 3);
    fixture.ok(&["umount", "d"]);
    fixture.ok(&["umount", "b"]);
    fixture.ok(&["export", "two"]);
}

#[test]
fn a_busy_mount_is_unmounted_lazily_at_the_second_signal() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let mut running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    fs::write(at.join("file"), b"content").unwrap();
    let file = fs::File::open(at.join("file")).unwrap();
    running.signal(libc::SIGINT);
    let first = running.read_until("press Ctrl-C again");
    assert!(first.contains("busy"), "{first}");
    assert!(is_mounted(&at), "it is in use");
    running.signal(libc::SIGINT);
    let output = running.wait();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("unmounting lazily"), "{out}");
    assert!(!is_mounted(&at));
    drop(file);
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn what_a_killed_process_leaves_is_cleared() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let by_umount: &dyn Fn() = &|| {
        let said = fixture.ok(&["umount", "at"]);
        assert!(said.contains("cleared"), "{said}");
    };
    // A mount clears it as well.
    let by_mount: &dyn Fn() = &|| {};
    for (round, clear) in [by_umount, by_mount, by_mount].into_iter().enumerate() {
        fixture.ok(&["mount", "tank.img", "at", "--daemon"]);
        let names = fs::read_dir(&at).unwrap().count();
        assert_eq!(names, round);
        let file = fs::File::create(at.join(format!("file {round}"))).unwrap();
        file.sync_all().unwrap();
        fs::File::open(&at).unwrap().sync_all().unwrap();
        let pid = fixture.processes()[0]["pid"].as_i64().unwrap() as i32;
        signal(pid, libc::SIGKILL);
        drop(file);
        wait_until("the mount is dead", || {
            fs::metadata(&at)
                .err()
                .is_some_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
        });
        clear();
    }
    fixture.ok(&["umount", "at"]);
    let checked = fixture.ok(&["check", "tank.img"]);
    assert!(checked.contains("1 directories, 3 other files"), "{checked}");
}

/// Kills the process that serves `at`, and clears the mount.
fn kill(fixture: &Fixture, at: &std::path::Path) {
    let pid = fixture.processes()[0]["pid"].as_i64().unwrap() as i32;
    signal(pid, libc::SIGKILL);
    wait_until("the mount is dead", || {
        let error = fs::metadata(at).err();
        error.is_some_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    });
    fixture.ok(&["umount", "at"]);
}

#[test]
fn files_with_new_names_keep_their_content_when_the_process_is_killed() {
    if !fuse() {
        return;
    }
    for (kernel_cache, open) in [(false, false), (false, true), (true, false), (true, true)] {
        let fixture = Fixture::new();
        fixture.pool("tank.img");
        let at = fixture.folder("at");
        let option = if kernel_cache { "--kernel-cache" } else { "--separate" };
        let mount = ["mount", "tank.img", "at", "--daemon", "--memory", "192M", option];
        fixture.ok(&mount);
        fs::write(at.join("config"), b"old").unwrap();
        fs::File::open(at.join("config")).unwrap().sync_all().unwrap();
        let content = |n: u8| vec![n; 300_000];
        let mut files = Vec::new();
        for (n, name) in [(1, "tmp"), (2, "linked"), (3, "renamed")] {
            let mut file = fs::File::create(at.join(name)).unwrap();
            file.write_all(&content(n)).unwrap();
            // Its pages may be in the kernel as long as it is open.
            files.extend(open.then_some(file));
        }
        fs::rename(at.join("tmp"), at.join("config")).unwrap();
        fs::hard_link(at.join("linked"), at.join("link")).unwrap();
        fs::remove_file(at.join("linked")).unwrap();
        fs::rename(at.join("renamed"), at.join("to")).unwrap();
        let mut other = fs::File::create(at.join("other")).unwrap();
        other.write_all(b"other").unwrap();
        other.sync_all().unwrap();
        kill(&fixture, &at);
        drop((files, other));
        fixture.ok(&mount);
        for (n, name) in [(1, "config"), (2, "link"), (3, "to")] {
            let found = fs::read(at.join(name)).unwrap();
            let said = format!("{name}: {} bytes, kernel_cache {kernel_cache}", found.len());
            assert!(found == content(n), "{said}, open {open}");
        }
        assert!(!at.join("linked").exists());
        fixture.ok(&["umount", "at"]);
    }
}

/// The kernel's write-back needs the threads that answer requests: more renames wait for it than
/// there are.
#[test]
fn many_open_files_are_renamed_at_a_time() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "512M"]);
    let at = fixture.folder("at");
    fixture.ok(&["mount", "tank.img", "at", "--daemon", "--memory", "192M", "--kernel-cache"]);
    let rename = |thread: u8| {
        for round in 0..20 {
            let (tmp, to) = (at.join(format!("tmp {thread}")), at.join(format!("{thread}")));
            let mut file = fs::File::create(&tmp).unwrap();
            file.write_all(&vec![round; 200_000]).unwrap();
            fs::rename(&tmp, &to).unwrap();
            assert_eq!(fs::read(&to).unwrap(), vec![round; 200_000]);
            // Its content stays the file's, under the new name.
            file.write_all(b"more").unwrap();
            assert_eq!(fs::metadata(&to).unwrap().len(), 200_004);
        }
    };
    std::thread::scope(|scope| {
        let rename = &rename;
        for thread in 0..24 {
            scope.spawn(move || rename(thread));
        }
    });
    fixture.ok(&["umount", "at"]);
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn a_lost_write_fails_each_fsync_until_it_is_made_good() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    // Simple content is to fill it.
    fixture.ok(&["dataset", "set", "tank.img", "main", "--compression", "off"]);
    let at = fixture.folder("at");
    fixture.ok(&["mount", "tank.img", "at", "--daemon", "--memory", "192M", "--kernel-cache"]);
    let mut file = fs::File::create(at.join("lost")).unwrap();
    // More than the pool has. The kernel may say so in a write, or later.
    let wrote = (0..100).try_for_each(|n| file.write_all(&vec![n; 1 << 20]));
    let first = file.sync_all();
    assert!(wrote.is_err() || first.is_err(), "all of it was written");
    // The kernel reports what it learns itself, each once; then the file system is asked.
    for _ in 0..10 {
        file.sync_all().unwrap_err();
    }
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
    // Another one has lost nothing.
    fs::File::open(&at).unwrap().sync_all().unwrap();
    file.set_len(0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    fixture.ok(&["umount", "at"]);
}

#[test]
fn places_that_cannot_be_mounted_on() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.folder("full");
    fs::write(fixture.path("full/file"), b"").unwrap();
    fs::write(fixture.path("file"), b"").unwrap();
    for daemon in [&[][..], &["--daemon"]] {
        for (at, said) in [
            ("absent", "mkdir absent"),
            ("file", "is not a directory"),
            ("full", "is not empty"),
            ("/proc", "is mounted there"),
        ] {
            let line = fixture.fails(&[&["mount", "tank.img", at], daemon].concat());
            assert!(line.contains(said), "{at}: {line}");
        }
    }
    let at = fixture.folder("at");
    let running = mounted(&fixture, &["mount", "tank.img", "at"], &at);
    fixture.pool("other.img");
    let line = fixture.fails(&["mount", "other.img", "at"]);
    assert!(
        line.contains("tank/main is mounted there") && line.contains("forebay umount"),
        "{line}"
    );
    let line = fixture.fails(&["mount", "tank.img", "full"]);
    assert!(line.contains("not empty"), "{line}");
    fixture.folder("free");
    let line = fixture.fails(&["mount", "tank.img", "free"]);
    assert!(line.contains("pool tank is in use by process"), "{line}");
    let line = fixture.fails(&["umount", "/proc"]);
    assert!(line.contains("not of a pool"), "{line}");
    running.signal(libc::SIGTERM);
    assert!(running.wait().status.success());
    assert!(fixture.processes().is_empty());
}

#[test]
fn many_small_files_are_read_back_while_others_are_made() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.ok(&["create", "tank.img", "--size", "512M"]);
    let at = fixture.folder("at");
    fixture.ok(&["mount", "tank.img", "at", "--daemon", "--memory", "192M"]);
    let path = &|folder: usize, file: usize| at.join(format!("{folder}/{file}"));
    for folder in 0..4 {
        fs::create_dir(at.join(folder.to_string())).unwrap();
        for file in 0..1500 {
            fs::write(path(folder, file), format!("{folder} {file}")).unwrap();
        }
    }
    // From the devices, while times of what was made are written in the background.
    let done = &std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(std::sync::atomic::Ordering::Relaxed) < 4 {
                fixture.ok(&["cache", "flush"]);
            }
        });
        for folder in 0..4 {
            scope.spawn(move || {
                for file in 0..1500 {
                    let content = fs::read(path(folder, file)).unwrap();
                    assert_eq!(content, format!("{folder} {file}").as_bytes());
                    fs::write(path(folder, file + 10_000), b"").unwrap();
                }
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
    });
    fixture.ok(&["umount", "at"]);
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn a_full_pool_says_so_and_can_be_emptied() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    // Simple content is to fill it.
    fixture.ok(&["dataset", "set", "tank.img", "main", "--compression", "off"]);
    let at = fixture.folder("at");
    fixture.ok(&["mount", "tank.img", "at", "--daemon"]);
    let piece = vec![7; 1 << 20];
    let mut written = 0;
    let error = loop {
        assert!(written < 200, "it has 64 MiB");
        match fs::write(at.join(format!("piece {written}")), &piece) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(written > 10, "{written}");
    for name in 0..written {
        let path = at.join(format!("piece {name}"));
        assert_eq!(fs::read(&path).unwrap(), piece, "{name}");
        fs::remove_file(&path).unwrap();
    }
    fs::write(at.join("again"), &piece).unwrap();
    fixture.ok(&["umount", "at"]);
    fixture.ok(&["check", "tank.img"]);
}

#[test]
fn mount_calls_it_by_another_name() {
    if !fuse() || !root() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let helper = fixture.path("mount.forebay");
    symlink(env!("CARGO_BIN_EXE_forebay"), &helper).unwrap();
    let pool = fixture.path("tank.img");
    let arguments =
        [pool.to_str().unwrap(), at.to_str().unwrap(), "-n", "-o", "rw,noatime,nofail,memory=192M"];
    let output = fixture.command_of(&helper, &arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(is_mounted(&at));
    fixture.ok(&["umount", "at"]);
    let output = fixture.command_of(&helper, &[pool.to_str().unwrap()]).output().unwrap();
    let line = failed(&output, 2, &["mount.forebay"]);
    assert!(line.contains("SOURCE TARGET"), "{line}");
}

#[test]
fn a_service_manager_hears_that_it_is_mounted() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    let at = fixture.folder("at");
    let socket = std::os::unix::net::UnixDatagram::bind(fixture.path("notify")).unwrap();
    let mut command = fixture.command(&["mount", "tank.img", "at"]);
    let mut child = command
        .env("NOTIFY_SOCKET", fixture.path("notify"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut said = [0; 64];
    let count = socket.recv(&mut said).unwrap();
    assert_eq!(&said[..count], b"READY=1");
    assert!(is_mounted(&at));
    signal(child.id() as i32, libc::SIGTERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn no_pool_lies_on_a_mount_of_ours() {
    if !fuse() {
        return;
    }
    let fixture = Fixture::new();
    fixture.pool("tank.img");
    fixture.pool("other.img");
    let (at, other) = (fixture.folder("at"), fixture.folder("other-at"));
    fixture.ok(&["mount", "--daemon", "tank.img", "at"]);
    let refused = |arguments: &[&str]| {
        let said = fixture.fails(arguments);
        assert!(said.contains("lies on ") && said.contains("Forebay serves itself"), "{said}");
    };
    refused(&["create", "at/new.img", "--size", "64M"]);
    refused(&["expand", "other.img", "--add", "at/new.img", "--size", "64M"]);
    refused(&["l2", "add", "other.img", "at/new.img", "--size", "64M"]);
    assert!(!at.join("new.img").exists());
    fs::copy(fixture.path("other.img"), at.join("inner.img")).unwrap();
    symlink(at.join("inner.img"), fixture.path("inner.img")).unwrap();
    for path in ["at/inner.img", "inner.img"] {
        refused(&["import", path]);
        refused(&["mount", "--daemon", path, "other-at"]);
        refused(&["mount", "--daemon", "--read-only", path, "other-at"]);
        refused(&["create", path, "--force"]);
    }
    assert!(!is_mounted(&other) && fixture.processes().len() == 1);
    // It may be looked at.
    fixture.ok(&["import", "--show", "at/inner.img"]);
    fixture.ok(&["umount", "at"]);
}
