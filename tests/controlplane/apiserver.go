package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"

	"k8s.io/client-go/rest"
)

// issuer names the cluster in the ServiceAccount tokens that it signs.
const issuer = "https://kubernetes.default.svc.cluster.local"

const (
	// ServiceRange holds the addresses of services. It is part of a range for benchmarks, which no network uses.
	ServiceRange = "198.18.0.0/24"
	// serviceAddress is the address of the service "kubernetes", the first of the range.
	serviceAddress = "198.18.0.1"
)

// serviceNames returns the names by which pods call the API server.
func serviceNames() []string {
	return []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
}

func (cp *ControlPlane) startAPIServer(ctx context.Context) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cp.credentials.servingCA)
	err := cp.startServer(ctx, "kube-apiserver", func() (launch, error) {
		address, err := cp.freeAddress()
		if err != nil {
			return launch{}, err
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return launch{}, err
		}
		cp.config = &rest.Config{
			Host:            "https://" + address,
			BearerToken:     cp.credentials.tokens[administrator],
			TLSClientConfig: rest.TLSClientConfig{CAData: cp.credentials.servingCA},
			QPS:             -1, // the server's own flow control is enough
		}
		// A loopback address cannot be an endpoint of the service "kubernetes".
		endpoints := "none"
		var kubelets []string
		if cp.hasNodes() {
			endpoints = "lease"
			cp.config.Dial = cp.Dial
			if kubelets, err = cp.kubeletClientArgs(); err != nil {
				return launch{}, err
			}
		}
		return launch{
			args: append(kubelets,
				"--etcd-servers=unix://"+cp.etcdSocket(),
				"--bind-address="+host,
				"--advertise-address="+host,
				"--secure-port="+port,
				"--endpoint-reconciler-type="+endpoints,
				"--tls-cert-file="+cp.credentials.servingCertFile,
				"--tls-private-key-file="+cp.credentials.servingKeyFile,
				"--token-auth-file="+cp.credentials.tokenFile,
				"--authorization-mode=Node,RBAC",
				"--enable-admission-plugins="+strings.Join(append([]string{"NodeRestriction"}, cp.options.AdmissionPlugins...), ","),
				"--service-account-issuer="+issuer,
				"--service-account-key-file="+cp.credentials.accountKeyFile,
				"--service-account-signing-key-file="+cp.credentials.accountKeyFile,
				"--service-cluster-ip-range="+ServiceRange,
				"--allow-privileged=true",
				"--profiling=false",
			),
			ready: cp.answersOK(cp.config.Host+"/readyz", cp.config.BearerToken, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}),
		}, nil
	})
	if err != nil {
		return err
	}
	cp.KubeconfigPath, err = cp.WriteKubeconfig("admin", cp.config)
	return err
}
