//! `polylock install`: the tables and functions that keep locks in PostgreSQL.

use clap::Args;
use polylock::PostgresConfig;
use polylock::postgres::schema::Grants;
use serde_json::json;

use crate::connect::LocksOptions;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// The options of `polylock install`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InstallOptions {
    #[command(flatten)]
    store: LocksOptions,

    /// A role that may use the locks, and fence its transactions. It can be given several times; `public` is every role
    #[arg(long, value_name = "ROLE")]
    grant: Vec<String>,

    /// A role that may break locks as well. It can be given several times
    #[arg(long, value_name = "ROLE")]
    operator: Vec<String>,

    /// Print the SQL, for an administrator, and connect to nothing
    #[arg(long)]
    print: bool,
}

const EXAMPLES: &str = "\
The owner of the schema may do everything; other roles what they are granted. An upgrade keeps what was granted.

Examples:
  polylock install --url postgres://admin@host/shop --grant app --operator on_call
  polylock install --url postgres://host/shop?schema=locks --grant app --print | psql -v ON_ERROR_STOP=1 --dbname shop";

pub(crate) async fn run(options: InstallOptions, output: Output) -> Result<Exit, Failure> {
    let grants = options.grant.into_iter().fold(Grants::default(), Grants::client);
    let grants = options.operator.into_iter().fold(grants, Grants::operator);
    let config = PostgresConfig::from_url(&options.store.url()?)?.grants(grants);
    if options.print {
        let sql = config.schema_sql();
        output.result(&sql, &json!({ "sql": sql }))?;
        return Ok(Exit::Done);
    }
    config.install_schema().await?;
    output.result("The schema is installed.", &json!({ "installed": true }))?;
    Ok(Exit::Done)
}
