//! The answers of scripts and of TIME.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_link::inspection::Inspection;
use redis_link::lock_answer::LockAnswer;
use redis_link::redis::{Value, parse_redis_value};
use redis_link::wire;

fuzz_target!(|reply: &[u8]| {
    read(&Value::BulkString(reply.to_vec()));
    if let Ok(answer) = parse_redis_value(reply) {
        read(&answer);
    }
});

fn read(answer: &Value) {
    let _ = (wire::flag(answer), wire::time(answer), wire::text(answer), LockAnswer::read(answer));
    assert!(wire::token(answer).is_none_or(|token| i64::try_from(token.get()).is_ok()));
    if let Some(inspection) = Inspection::read(answer) {
        assert!(!inspection.state().to_string().is_empty());
    }
}
