//! What keeps servers from serving for a while, in the fault table and in a soak.

use lock_testkit::proxy::Direction;

use super::FaultServers;
use crate::data::Outcome;

/// What keeps servers from serving.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Trouble {
    /// They are stopped by SIGSTOP.
    Frozen,
    /// They are killed by SIGKILL; in the end they are restarted with their data.
    Killed,
    /// What this route carries to and from them is lost.
    CutOff { route: usize, directions: Vec<Direction> },
    /// They may use no more memory: they refuse what needs some.
    Full,
    /// All demand another password, and close the connections of clients; in the end clients can read it.
    OtherPassword,
    /// They are restarted with certificates of another authority; in the end clients can read them.
    OtherCertificates,
}

impl FaultServers {
    /// Brings servers into trouble.
    pub(crate) async fn begin(&self, trouble: &Trouble, servers: &[usize]) -> Outcome<()> {
        if *trouble == Trouble::OtherPassword {
            return self.replace_password().await;
        }
        for &server in servers {
            match trouble {
                Trouble::Frozen => self.stop(server),
                Trouble::Killed => self.kill(server),
                Trouble::CutOff { route, directions } => self.cut_off(*route, server, directions, true),
                Trouble::Full => self.fill_memory(server, true).await?,
                Trouble::OtherCertificates => self.replace_certificates(server).await?,
                Trouble::OtherPassword => {}
            }
        }
        Ok(())
    }

    /// Ends the trouble.
    pub(crate) async fn end(&self, trouble: &Trouble, servers: &[usize]) -> Outcome<()> {
        for &server in servers {
            match trouble {
                Trouble::Frozen => self.cont(server),
                Trouble::Killed => self.start_again(server).await?,
                Trouble::CutOff { route, directions } => self.cut_off(*route, server, directions, false),
                Trouble::Full => self.fill_memory(server, false).await?,
                Trouble::OtherPassword | Trouble::OtherCertificates => {}
            }
        }
        match trouble {
            Trouble::OtherPassword | Trouble::OtherCertificates => self.publish_secrets(),
            _ => Ok(()),
        }
    }

    fn cut_off(&self, route: usize, server: usize, directions: &[Direction], on: bool) {
        let proxy = self.proxy_of(route, server);
        directions.iter().for_each(|&direction| proxy.black_hole(direction, on));
    }
}
