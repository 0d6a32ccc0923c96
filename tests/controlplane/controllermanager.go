package controlplane

import (
	"context"
	"crypto/tls"
	"net"
)

func (cp *ControlPlane) startControllerManager(ctx context.Context) error {
	return cp.startServer(ctx, "kube-controller-manager", func() (launch, error) {
		address, err := freeAddress()
		if err != nil {
			return launch{}, err
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return launch{}, err
		}
		return launch{
			args: []string{
				"--kubeconfig=" + cp.KubeconfigPath,
				// Let it judge who may ask for its health without a request to the API server.
				"--authorization-always-allow-paths=/healthz",
				"--bind-address=" + host,
				"--secure-port=" + port,
				"--leader-elect=false",
				// What matters without a node. The rest would only cost start-up time and memory.
				"--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller," +
					"serviceaccount-token-controller,root-ca-certificate-publisher-controller,clusterrole-aggregation-controller",
				"--root-ca-file=" + cp.credentials.servingCertFile,
				"--service-account-private-key-file=" + cp.credentials.accountKeyFile,
				"--profiling=false",
			},
			// The server makes its certificate for itself in memory. No secret is sent.
			ready: answersOK("https://"+address+"/healthz", "", &tls.Config{InsecureSkipVerify: true}),
		}, nil
	})
}
