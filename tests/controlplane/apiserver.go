package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"

	"k8s.io/client-go/rest"
)

// issuer names the cluster in the ServiceAccount tokens that it signs.
const issuer = "https://kubernetes.default.svc.cluster.local"

func (cp *ControlPlane) startAPIServer(ctx context.Context) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cp.credentials.servingCA)
	err := cp.startServer(ctx, "kube-apiserver", func() (launch, error) {
		address, err := freeAddress()
		if err != nil {
			return launch{}, err
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return launch{}, err
		}
		cp.config = &rest.Config{
			Host:            "https://" + address,
			BearerToken:     cp.credentials.adminToken,
			TLSClientConfig: rest.TLSClientConfig{CAData: cp.credentials.servingCA},
			QPS:             -1, // the server's own flow control is enough
		}
		return launch{
			args: []string{
				"--etcd-servers=unix://" + cp.etcdSocket(),
				"--bind-address=" + host,
				"--advertise-address=" + host,
				"--secure-port=" + port,
				// A loopback address cannot be an endpoint of the service "kubernetes".
				"--endpoint-reconciler-type=none",
				"--tls-cert-file=" + cp.credentials.servingCertFile,
				"--tls-private-key-file=" + cp.credentials.servingKeyFile,
				"--token-auth-file=" + cp.credentials.tokenFile,
				"--authorization-mode=RBAC",
				"--service-account-issuer=" + issuer,
				"--service-account-key-file=" + cp.credentials.accountKeyFile,
				"--service-account-signing-key-file=" + cp.credentials.accountKeyFile,
				"--service-cluster-ip-range=198.18.0.0/24", // a range for benchmarks, nothing is ever sent there
				"--allow-privileged=true",
				"--profiling=false",
			},
			ready: answersOK(cp.config.Host+"/readyz", cp.config.BearerToken, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}),
		}, nil
	})
	if err != nil {
		return err
	}
	cp.KubeconfigPath, err = cp.WriteKubeconfig("admin", cp.config)
	return err
}
