package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stack-controller/stack-controller/internal/agent/client"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
)

func TestAnAgentAsInAPodServesTheControllerAndNobodyElse(t *testing.T) {
	b := newBench(t)
	seen := filepath.Join(t.TempDir(), "variable")
	b.script("pulumi-language-yaml", fmt.Sprintf("#!/bin/sh\nprintf %%s \"$CANARY\" >%q\nexec %q \"$@\"\n", seen, tool(t, "pulumi-language-yaml")))
	p := b.newPod()
	agent := p.connect(p.certificate, p.audience)
	b.Eventually(func() error { _, err := agent.GetInfo(t.Context()); return err }).WithTimeout(patience).Should(Succeed())

	digest := b.push(agent, program(1))
	b.succeed(agent, b.update("a", digest))
	// Programs have the variables that an init container wrote.
	b.Expect(os.ReadFile(seen)).To(BeEquivalentTo("canary-environment"))

	var denied *client.Error
	_, err := p.connect(p.certificate, p.audience+"-2").GetInfo(t.Context())
	b.Expect(err).To(And(MatchError(client.ErrDenied), BeAssignableToTypeOf(denied), HaveField("Code", codes.Unauthenticated)))
	other, err := credentials.NewKeyPair()
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(p.connect(other[corev1.TLSCertKey], p.audience).GetInfo(t.Context())).Error().To(MatchError(client.ErrUnavailable))
	plain, err := client.New(p.address, client.Options{})
	b.Expect(err).NotTo(HaveOccurred())
	defer plain.Close()
	b.Expect(plain.GetInfo(t.Context())).Error().To(MatchError(client.ErrUnavailable))
	b.Expect(b.log.String()).NotTo(ContainSubstring("canary"))
}

// pod is an agent that is started as in a pod, with a real API server.
type pod struct {
	*bench
	audience, address string
	certificate       []byte
	tokens            *credentials.Tokens
	process           *os.Process
}

// newPod starts a control plane with the ServiceAccount controller, and an agent that serves it.
func (b *bench) newPod() *pod {
	b.t.Helper()
	cluster, err := controlplane.Start(b.t.Context(), controlplane.Options{CRDs: []string{}})
	b.Expect(err).NotTo(HaveOccurred())
	b.t.Cleanup(func() { _ = cluster.Stop() })
	admin, err := kubernetes.NewForConfig(cluster.Config())
	b.Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{"controller", "workspace"} {
		account := &corev1.ServiceAccount{Namespace: "default", Name: name}
		_, err := admin.CoreV1().ServiceAccounts("default").Create(b.t.Context(), account, metav1.CreateOptions{})
		b.Expect(err).NotTo(HaveOccurred())
	}
	own, err := cluster.ServiceAccountConfig(b.t.Context(), "default", "workspace")
	b.Expect(err).NotTo(HaveOccurred())
	pair, err := credentials.NewKeyPair()
	b.Expect(err).NotTo(HaveOccurred())
	p := &pod{bench: b, audience: credentials.Audience("default", "demo"), certificate: pair[corev1.TLSCertKey]}
	// The controller's right to request its own tokens is not tested here.
	p.tokens, err = credentials.NewTokens(cluster.UserConfig("system:serviceaccount:default:controller", "system:masters"))
	b.Expect(err).NotTo(HaveOccurred())
	volume := b.t.TempDir()
	for name, content := range map[string][]byte{
		"tls.crt": p.certificate, "tls.key": pair[corev1.TLSPrivateKeyKey], "token": []byte(own.BearerToken), "ca.crt": own.CAData,
		".env": []byte("CANARY=canary-environment\n"),
	} {
		b.Expect(os.WriteFile(filepath.Join(volume, name), content, 0o600)).To(Succeed())
	}
	p.start(volume, own.Host)
	return p
}

// start starts the agent with the files of the volume.
func (p *pod) start(volume, apiServer string) {
	p.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	p.Expect(err).NotTo(HaveOccurred())
	port := listener.Addr().(*net.TCPAddr).Port
	p.Expect(listener.Close()).To(Succeed())
	p.address = "127.0.0.1:" + strconv.Itoa(port)
	server, err := url.Parse(apiServer)
	p.Expect(err).NotTo(HaveOccurred())
	in := func(name string) string { return filepath.Join(volume, name) }
	cmd := exec.Command(os.Args[0], "serve", "--listen=:"+strconv.Itoa(port), "--dir="+p.dir, "--pulumi="+p.cli, "--log-level=debug",
		"--exclusive-host", "--env-file="+in(".env"), "--tls-cert-file="+in("tls.crt"), "--tls-key-file="+in("tls.key"),
		"--workspace-namespace=default", "--workspace-name=demo", "--token-audience="+p.audience,
		"--controller=system:serviceaccount:default:controller", "--api-token-file="+in("token"), "--api-ca-file="+in("ca.crt"))
	cmd.Env = append(os.Environ(), actAsAgent+"=1", "PATH="+p.bin+":"+os.Getenv("PATH"),
		"KUBERNETES_SERVICE_HOST="+server.Hostname(), "KUBERNETES_SERVICE_PORT="+server.Port())
	cmd.Stderr = p.log
	p.Expect(cmd.Start()).To(Succeed())
	p.process = cmd.Process
	ended, end := context.WithCancel(context.Background())
	go func() {
		defer end()
		_ = cmd.Wait()
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended.Done()
		if p.t.Failed() {
			p.t.Log(p.log.String())
		}
	})
}

// connect returns a client with the controller's identity.
func (p *pod) connect(certificate []byte, audience string) *agent {
	p.t.Helper()
	pinned, err := credentials.Pinned(certificate)
	p.Expect(err).NotTo(HaveOccurred())
	connected, err := client.New(p.address, client.Options{TransportCredentials: pinned, PerRPCCredentials: p.tokens.For(audience)})
	p.Expect(err).NotTo(HaveOccurred())
	p.t.Cleanup(func() { _ = connected.Close() })
	return &agent{Client: connected}
}
