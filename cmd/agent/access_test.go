package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// accessFlags returns the flags that an agent needs if other machines can reach it.
func accessFlags() []string {
	return []string{
		"--tls-cert-file=tls.crt", "--tls-key-file=tls.key", "--workspace-namespace=team", "--workspace-name=demo",
		"--token-audience=auto.pulumi.com/workspaces/team/demo", "--controller=system:serviceaccount:system:controller",
		"--api-token-file=token", "--api-ca-file=ca.crt",
	}
}

func TestNobodyCanReachAnAgentThatDoesNotAskWhoCalls(t *testing.T) {
	open := []string{":50051", "0.0.0.0:50051", "[::]:50051", "192.0.2.1:50051", "[2001:db8::1]:50051", "example.com:50051"}
	private := []string{"unix:/agent.sock", "127.0.0.1:50051", "[::1]:50051", "localhost:50051"}
	parse := func(listen string, flags []string) error {
		_, err := parseFlags(append([]string{"--listen=" + listen, "--dir=dir"}, flags...), io.Discard)
		return err
	}
	g := NewWithT(t)
	for _, listen := range slices.Concat(open, private) {
		g.Expect(parse(listen, accessFlags())).To(Succeed(), listen)
		// Only some of the flags is a mistake for every address.
		for i, flag := range accessFlags() {
			name, _, _ := strings.Cut(flag, "=")
			g.Expect(parse(listen, slices.Delete(accessFlags(), i, i+1))).To(MatchError(ContainSubstring(name+" missing")), listen)
		}
	}
	for _, listen := range open {
		g.Expect(parse(listen, nil)).To(MatchError(ContainSubstring("can be reached from other machines")), listen)
	}
	for _, listen := range private {
		g.Expect(parse(listen, nil)).To(Succeed(), listen)
	}
}

func TestTheControllerIsAServiceAccount(t *testing.T) {
	g := NewWithT(t)
	for _, controller := range []string{"admin", "system:serviceaccount:system", "system:serviceaccount::controller", "system:serviceaccount:a:b:c"} {
		_, err := parseFlags(append(append([]string{"--listen=:1", "--dir=dir"}, accessFlags()...), "--controller="+controller), io.Discard)
		g.Expect(err).To(MatchError(ContainSubstring("--controller is not of the form")), controller)
	}
}
