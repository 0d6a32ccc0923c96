package main

import (
	"bytes"
	"context"
	"flag"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestCommandLinesThatCannotWork(t *testing.T) {
	dir := t.TempDir()
	listen, in := "--listen=unix:"+filepath.Join(dir, "s"), "--dir="+filepath.Join(dir, "agent")
	tests := []struct {
		name, message string
		args          []string
	}{
		{"nothing", "usage", nil},
		{"unknown command", "usage", []string{"run"}},
		{"unknown flag", "not defined", []string{"serve", "--verbose"}},
		{"no address", "--listen and --dir are required", []string{"serve", in}},
		{"no directory", "--listen and --dir are required", []string{"serve", listen}},
		{"argument", `unexpected argument "x"`, []string{"serve", listen, in, "x"}},
		{"negative idle timeout", "--idle-timeout is negative", []string{"serve", listen, in, "--idle-timeout=-1s"}},
		{"no size", "have to be positive", []string{"serve", listen, in, "--max-source-size=0"}},
		{"unknown level", "log-level", []string{"serve", listen, in, "--log-level=loud"}},
		{"no port", "neither unix:/path nor host:port", []string{"serve", "--listen=localhost", in}},
		{"long socket", "more than the 107", []string{"serve", "--listen=unix:/" + strings.Repeat("x", 107), in}},
		{"no command", "a command is required", []string{"exec", "--env-file=none"}},
		{"missing command", "no-such-command", []string{"exec", "no-such-command"}},
		{"no pulumi", "no-such-pulumi", []string{"serve", listen, in, "--pulumi=no-such-pulumi"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), tt.args, &out)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(tt.message)))
		})
	}
}

func TestHelpListsTheFlags(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	g.Expect(run(t.Context(), []string{"serve", "--help"}, &out)).To(MatchError(flag.ErrHelp))
	for _, name := range []string{"listen", "dir", "workspace", "tls-cert-file", "env-file", "pulumi", "idle-timeout", "log-level", "max-source-size", "max-unpacked-size", "max-entries"} {
		g.Expect(out.String()).To(ContainSubstring("-" + name))
	}
}

func TestTheVersionIsPrinted(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	g.Expect(run(t.Context(), []string{"version"}, &out)).To(Succeed())
	g.Expect(out.String()).To(Equal(version + "\n"))
}

func TestAnAgentOnLoopbackServesUntilItsContextEnds(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The context ends even before the agent is ready.
	err := run(ctx, []string{"serve", "--listen=127.0.0.1:0", "--dir=" + t.TempDir(), "--pulumi=" + tool(t, "pulumi")}, &bytes.Buffer{})
	g.Expect(err).To(Or(Succeed(), MatchError(ContainSubstring("context canceled"))))
}
