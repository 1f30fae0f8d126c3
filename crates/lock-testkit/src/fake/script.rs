//! Scripts: Lua 5.1 with the `redis` library and its conversions.
//!
//! The base, string, table and math libraries and `redis.*` exist. Other libraries of Redis, such as `cjson`, do not: a
//! script that needs one fails.

use std::cell::RefCell;
use std::collections::HashMap;

use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

use super::reply::{Answer, Bytes, Reply, format_number};
use super::server::Call;

/// Compiles a script, as `SCRIPT LOAD` does.
pub(super) fn compile(hash: &str, source: &[u8]) -> Result<(), String> {
    ENGINE.with(|engine| engine.function(hash, source).map(drop))
}

/// Runs a script atomically.
pub(super) fn run(call: &mut Call<'_>, hash: &str, source: &[u8], keys: &[Bytes], args: &[Bytes]) -> Answer {
    ENGINE.with(|engine| {
        let function = engine.function(hash, source)?;
        let ran = engine.run(call, &function, keys, args);
        let (fine, value) = ran.map_err(|error| format!("ERR Error running script: {error}"))?;
        if fine {
            return Ok(from_lua(&value, 0));
        }
        Err(match error_of(&value) {
            Some(text) => format!("{text} script: {hash}, on @user_script"),
            None => format!("ERR {} script: {hash}, on @user_script", line_of(&value)),
        })
    })
}

thread_local! {
    // One per thread: a Lua state cannot be shared, and compiling is expensive.
    static ENGINE: Engine = Engine::new().expect("Lua starts");
}

struct Engine {
    lua: Lua,
    /// The `redis` table; each run sets its `pcall`.
    library: Table,
    /// Calls a function and returns what it raised, whatever its type.
    guarded: Function,
    compiled: RefCell<HashMap<String, Function>>,
}

/// The rest of the library in Lua, and the ban on globals.
const PRELUDE: &str = "
local redis = {}
local type, error, pcall, tostring, sub = type, error, pcall, tostring, string.sub

function redis.call(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply['err'] then
    error(reply, 0)
  end
  return reply
end

function redis.status_reply(text)
  if type(text) ~= 'string' then
    return {err = 'ERR wrong number or type of arguments'}
  end
  return {ok = text}
end

-- With a code, '-CODE text', or without; the code needs no '-'.
function redis.error_reply(text)
  if type(text) ~= 'string' then
    return {err = 'ERR wrong number or type of arguments'}
  end
  if sub(text, 1, 1) == '-' then
    text = sub(text, 2)
  end
  if not string.find(text, ' ', 1, true) then
    text = 'ERR ' .. text
  end
  return {err = text}
end

function redis.log() end
redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3

function redis.setresp(version)
  if version ~= 2 then
    error('the fake speaks RESP2 to scripts', 0)
  end
end

-- What a command raised comes out of pcall as its text.
rawset(_G, 'pcall', function(...)
  local results = {pcall(...)}
  if not results[1] and type(results[2]) == 'table' and results[2]['err'] then
    return false, results[2]['err']
  end
  return unpack(results)
end)

rawset(_G, 'redis', redis)
setmetatable(_G, {
  __index = function(_, name)
    error('Script attempted to access nonexistent global variable \\'' .. tostring(name) .. '\\'', 2)
  end,
  __newindex = function()
    error('Attempt to modify a readonly table', 2)
  end,
})
return redis, function(script)
  return pcall(script)
end
";

impl Engine {
    fn new() -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default())?;
        let (library, guarded): (Table, Function) = lua.load(PRELUDE).set_name("=prelude").call(())?;
        let hash = |text: mlua::String| sha1_smol::Sha1::from(&*text.as_bytes()).digest().to_string();
        library.raw_set("sha1hex", lua.create_function(move |_, text| Ok(hash(text)))?)?;
        Ok(Self { lua, library, guarded, compiled: RefCell::default() })
    }

    fn function(&self, hash: &str, source: &[u8]) -> Result<Function, String> {
        if let Some(function) = self.compiled.borrow().get(hash) {
            return Ok(function.clone());
        }
        let chunk = self.lua.load(source).set_name("@user_script").set_mode(mlua::ChunkMode::Text);
        let function = chunk.into_function().map_err(|error| {
            format!(
                "ERR Error compiling script (new function): {}",
                first_line(error.to_string().trim_start_matches("syntax error: "))
            )
        })?;
        self.compiled.borrow_mut().insert(hash.to_owned(), function.clone());
        Ok(function)
    }

    /// Returns the result of the script, or what it raised.
    fn run(
        &self,
        call: &mut Call<'_>,
        function: &Function,
        keys: &[Bytes],
        args: &[Bytes],
    ) -> mlua::Result<(bool, Value)> {
        let globals = self.lua.globals();
        globals.raw_set("KEYS", self.strings(keys)?)?;
        globals.raw_set("ARGV", self.strings(args)?)?;
        let (session, server) = (call.session, RefCell::new(&mut *call.server));
        self.lua.scope(|scope| {
            let pcall = scope.create_function(|lua, words: MultiValue| {
                let mut server = server.borrow_mut();
                let mut call = Call { server: &mut server, session, in_script: true };
                let answer = command_of(&words).and_then(|words| call.run(&words));
                to_lua(lua, answer.unwrap_or_else(Reply::Error))
            })?;
            self.library.raw_set("pcall", pcall)?;
            self.guarded.call((function,))
        })
    }

    fn strings(&self, all: &[Bytes]) -> mlua::Result<Table> {
        let strings = all.iter().map(|bytes| self.lua.create_string(bytes));
        self.lua.create_sequence_from(strings.collect::<mlua::Result<Vec<_>>>()?)
    }
}

fn command_of(words: &MultiValue) -> Result<Vec<Bytes>, String> {
    if words.is_empty() {
        return Err("ERR Please specify at least one argument for this redis lib call".to_owned());
    }
    let word = |value: &Value| match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(number) => Ok(format_number(*number as f64).into_bytes()),
        Value::Number(number) => Ok(format_number(*number).into_bytes()),
        _ => Err("ERR Lua redis lib command arguments must be strings or integers".to_owned()),
    };
    words.iter().map(word).collect()
}

/// Converts a reply for a script: null is `false`, a status line and an error are tables.
fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    Ok(match reply.plain() {
        Reply::Int(number) => Value::Number(number as f64),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Simple(text) => Value::Table(lua.create_table_from([("ok", text)])?),
        Reply::Error(text) => Value::Table(lua.create_table_from([("err", text)])?),
        Reply::Array(elements) => {
            let table = lua.create_table_with_capacity(elements.len(), 0)?;
            for (index, element) in elements.into_iter().enumerate() {
                table.raw_set(index + 1, to_lua(lua, element)?)?;
            }
            Value::Table(table)
        }
        _ => Value::Boolean(false),
    })
}

/// Converts the result of a script: numbers lose their fraction, `false` is null, an array ends at its first `nil`.
fn from_lua(value: &Value, depth: usize) -> Reply {
    match value {
        Value::String(text) => Reply::bulk(text.as_bytes()),
        Value::Integer(number) => Reply::Int(*number),
        // As a C compiler for this kind of machine converts what does not fit.
        Value::Number(number) if number.abs() < 9.3e18 => Reply::Int(*number as i64),
        Value::Number(_) => Reply::Int(i64::MIN),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(_) if depth > 100 => Reply::Error("ERR reached lua stack limit".to_owned()),
        Value::Table(table) => from_table(table, depth),
        _ => Reply::Nil,
    }
}

fn from_table(table: &Table, depth: usize) -> Reply {
    if let Some(error) = field(table, "err") {
        return Reply::Error(error);
    }
    if let Some(status) = field(table, "ok") {
        return Reply::Simple(status);
    }
    if let Ok(Value::Number(number)) = table.raw_get::<Value>("double") {
        return Reply::Double(number);
    }
    let elements =
        (1..).map_while(|index| table.raw_get::<Value>(index).ok().filter(|value| !value.is_nil()));
    Reply::Array(elements.map(|element| from_lua(&element, depth + 1)).collect())
}

fn error_of(value: &Value) -> Option<String> {
    field(value.as_table()?, "err")
}

fn field(table: &Table, name: &str) -> Option<String> {
    let value = table.raw_get::<Value>(name).ok()?;
    Some(value.as_string()?.to_string_lossy())
}

/// The message that a script raised.
fn line_of(value: &Value) -> String {
    match value {
        Value::String(text) => first_line(&text.to_string_lossy()),
        Value::Error(error) => first_line(&error.to_string()),
        _ => "execution failure".to_owned(),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
