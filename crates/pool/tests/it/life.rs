//! The life of a pool: made, filled, exported, imported, checked.

use forebay_pool::ErrorKind;

use crate::common::{MIB, cache, check, create, dataset, import, memory};

#[test]
fn what_is_written_is_there_after_an_export_and_an_import() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_object(&tx, b"attributes").unwrap();
    let directory = data.create_directory(&tx, &[]).unwrap();
    let object = data.object(number).unwrap();
    let content: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
    object.write(&tx, 3000, &content).unwrap();
    data.directory(directory).unwrap().insert(&tx, b"name", &number.to_le_bytes()).unwrap();
    drop(tx);
    check(&pool);
    drop((object, data));
    pool.export().unwrap();

    let pool = import(&device, &cache);
    check(&pool);
    assert_eq!(pool.datasets().unwrap(), ["data"]);
    let data = pool.dataset("data").unwrap();
    let value = data.directory(directory).unwrap().lookup(b"name").unwrap().unwrap();
    assert_eq!(*value, number.to_le_bytes());
    assert_eq!(data.object_info(number).unwrap().attributes, b"attributes");
    let object = data.object(number).unwrap();
    assert_eq!(object.size(), 103_000);
    let mut read = vec![1; 103_000];
    assert_eq!(object.read(0, &mut read).unwrap(), 103_000);
    assert!(read[..3000].iter().all(|byte| *byte == 0));
    assert_eq!(&read[3000..], content);

    let tx = pool.begin().unwrap();
    data.destroy(&tx, number).unwrap();
    assert_eq!(data.object(number).err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    assert_eq!(object.write(&tx, 0, b"x").unwrap_err().kind(), ErrorKind::Closed);
    data.directory(directory).unwrap().remove(&tx, b"name").unwrap();
    drop(tx);
    check(&pool);
    assert_eq!(data.object_count(), 1);
}

#[test]
fn a_directory_grows_and_shrinks_back_into_its_dnode() {
    let (device, cache) = (memory(64 * MIB), cache(32 * MIB));
    let pool = create(&device, &cache);
    let data = dataset(&pool);
    let tx = pool.begin().unwrap();
    let number = data.create_directory(&tx, &[]).unwrap();
    drop(tx);
    pool.sync().unwrap();
    let empty = data.allocated_bytes();
    let directory = data.directory(number).unwrap();
    for lot in 0..200u64 {
        let tx = pool.begin().unwrap();
        for name in lot * 100..(lot + 1) * 100 {
            directory.insert(&tx, name.to_string().as_bytes(), &name.to_le_bytes()).unwrap();
        }
        drop(tx);
        if lot % 50 == 0 {
            check(&pool);
        }
    }
    assert_eq!(directory.len(), 20_000);
    pool.sync().unwrap();
    let stats = directory.stats().unwrap();
    assert!(stats.fill() >= 0.65, "{stats}");
    drop((directory, data));
    pool.export().unwrap();

    let pool = import(&device, &cache);
    let data = pool.dataset("data").unwrap();
    let directory = data.directory(number).unwrap();
    for lot in 0..200u64 {
        let tx = pool.begin().unwrap();
        for name in lot * 100..(lot + 1) * 100 {
            let value = directory.remove(&tx, name.to_string().as_bytes()).unwrap();
            assert_eq!(*value, name.to_le_bytes());
        }
    }
    assert!(directory.is_empty());
    check(&pool);
    assert_eq!(data.allocated_bytes(), empty);
}
