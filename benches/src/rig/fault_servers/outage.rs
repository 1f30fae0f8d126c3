//! What keeps servers from serving for a while, in the fault table and in a soak.

use lock_testkit::proxy::Direction;

use super::FaultServers;
use crate::data::Outcome;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outage {
    Frozen,
    /// They are killed by SIGKILL; in the end they are restarted with their data.
    Killed,
    /// What this route carries to and from them is lost.
    CutOff {
        route: usize,
        directions: Vec<Direction>,
    },
    /// They may use no more memory: they refuse what needs some.
    Full,
    /// All demand another password, and close the connections of clients; in the end clients can read it.
    OtherPassword,
    /// They are restarted with certificates of another authority; in the end clients can read them.
    OtherCertificates,
}

impl FaultServers {
    pub(crate) async fn begin(&self, outage: &Outage, servers: &[usize]) -> Outcome<()> {
        if *outage == Outage::OtherPassword {
            return self.replace_password().await;
        }
        for &server in servers {
            match outage {
                Outage::Frozen => self.server(server).stop(),
                Outage::Killed => self.server(server).kill(),
                Outage::CutOff { route, directions } => self.cut_off(*route, server, directions, true),
                Outage::Full => self.fill_memory(server, true).await?,
                Outage::OtherCertificates => self.replace_certificates(server).await?,
                Outage::OtherPassword => {}
            }
        }
        Ok(())
    }

    pub(crate) async fn end(&self, outage: &Outage, servers: &[usize]) -> Outcome<()> {
        for &server in servers {
            match outage {
                Outage::Frozen => self.server(server).cont(),
                Outage::Killed => self.start_again(server).await?,
                Outage::CutOff { route, directions } => self.cut_off(*route, server, directions, false),
                Outage::Full => self.fill_memory(server, false).await?,
                Outage::OtherPassword | Outage::OtherCertificates => {}
            }
        }
        match outage {
            Outage::OtherPassword | Outage::OtherCertificates => self.publish_secrets(),
            _ => Ok(()),
        }
    }

    fn cut_off(&self, route: usize, server: usize, directions: &[Direction], on: bool) {
        let proxy = self.proxy_of(route, server);
        directions.iter().for_each(|&direction| proxy.black_hole(direction, on));
    }
}
