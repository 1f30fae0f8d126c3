//! The record of a migration, which operators may write by hand.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lock_core::LockName;
use lock_core::migration::StoredRecord;
use lock_migrate::Record;

fuzz_target!(|data: &[u8]| {
    if let Ok(record) = Record::parse(&StoredRecord::new(data.into(), 1), "shop") {
        let _ = record.rung(&LockName::new("orders/42").expect("it is a name"));
        let again = Record::parse(&StoredRecord::new(record.to_bytes().into(), 2), "shop");
        assert_eq!(again.expect("it can be read").to_bytes(), record.to_bytes());
    }
});
