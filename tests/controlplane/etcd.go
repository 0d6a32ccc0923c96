package controlplane

import (
	"context"
	"net"
	"path/filepath"
)

// etcd listens on unix sockets: in a private directory they need neither a port nor a certificate. It insists on URLs of
// the form host:port, which makes "client:0" the name of a socket in its working directory.
const (
	etcdClientURL = "unix://client:0"
	etcdPeerURL   = "unix://peer:0"
)

// etcdSocket is the path of etcd's socket for clients.
func (cp *ControlPlane) etcdSocket() string { return filepath.Join(cp.Dir, "etcd", "client:0") }

func (cp *ControlPlane) startEtcd(ctx context.Context) error {
	return cp.startServer(ctx, "etcd", func() (launch, error) {
		return launch{
			args: []string{
				"--data-dir=data",
				"--unsafe-no-fsync", // nothing here has to survive the machine
				"--listen-client-urls=" + etcdClientURL,
				"--advertise-client-urls=" + etcdClientURL,
				"--listen-peer-urls=" + etcdPeerURL,
				"--initial-advertise-peer-urls=" + etcdPeerURL,
				"--initial-cluster=default=" + etcdPeerURL,
				"--log-level=warn",
			},
			ready: func(ctx context.Context) error {
				connection, err := (&net.Dialer{}).DialContext(ctx, "unix", cp.etcdSocket())
				if err != nil {
					return err
				}
				return connection.Close()
			},
		}, nil
	})
}
