// Package cli_test runs flux-pulumi as a person does, on a system with running Stacks, and compares its output with golden files.
package cli_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/command"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// recorded is the namespace of the recorded objects, which no controller changes.
const recorded = "apps"

// updateCommand is the command that writes the golden files.
const updateCommand = "go test ./tests/e2e/cli -update-docs"

var (
	updateDocs = flag.Bool("update-docs", false, "write the golden files and docs/cli.md")
	system     *localsystem.System
	// today is the current time for the recorded objects: three hours and 30 seconds after they were created.
	today time.Time
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	suite := systemtest.Suite{
		Options: localsystem.Options{ControllerArgs: []string{"--watch-label-selector=!recorded"}},
		SetUp: func(ctx context.Context, on *localsystem.System) error {
			system = on
			return record(ctx)
		},
	}
	return suite.Run(m)
}

// record creates the recorded objects.
func record(ctx context.Context) error {
	namespace := &corev1.Namespace{Name: recorded}
	if err := system.Client.Create(ctx, namespace); err != nil {
		return fmt.Errorf("create namespace %s: %w", recorded, err)
	}
	today = namespace.CreationTimestamp.Add(3*time.Hour + 30*time.Second)
	content, err := template.New("recorded.yaml").Funcs(template.FuncMap{"ago": func(text string) (string, error) {
		ago, err := time.ParseDuration(text)
		return today.Add(-ago).UTC().Format(time.RFC3339), err
	}}).ParseFiles(filepath.Join("testdata", "recorded.yaml"))
	if err != nil {
		return fmt.Errorf("read the recorded objects: %w", err)
	}
	var all bytes.Buffer
	if err := content.Execute(&all, nil); err != nil {
		return fmt.Errorf("date the recorded objects: %w", err)
	}
	for document := range strings.SplitSeq(all.String(), "\n---\n") {
		if err := place(ctx, document); err != nil {
			return err
		}
	}
	return nil
}

func place(ctx context.Context, document string) error {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
		return fmt.Errorf("read a recorded object: %w", err)
	}
	object.SetNamespace(recorded)
	status := object.Object["status"]
	if err := system.Client.Create(ctx, object); err != nil {
		return fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	if status == nil {
		return nil
	}
	before := object.DeepCopy()
	object.Object["status"] = status
	// Not an update: source-controller gives a source its finalizer meanwhile.
	if err := system.Client.Status().Patch(ctx, object, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("set the status of %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// said is the output and the exit code of a run of the command line tool.
type said struct {
	out, err string
	code     int
}

// cli runs the command line tool as the administrator, at the given time.
func cli(ctx context.Context, now time.Time, args ...string) said {
	var out, log bytes.Buffer
	code := on(ctx, &out, &log, now, nil, args...)
	return said{out: out.String(), err: log.String(), code: code}
}

// on runs the command line tool with these streams and environment variables.
func on(ctx context.Context, out, log io.Writer, now time.Time, env map[string]string, args ...string) int {
	return command.Main(ctx, command.Environment{
		Version: "v1.2.3", Program: "/usr/local/bin/flux-pulumi", In: strings.NewReader(""), Out: out, Err: log,
		Getenv: func(name string) string { return env[name] }, Now: func() time.Time { return now },
	}, append([]string{"--kubeconfig", system.ControlPlane.KubeconfigPath}, args...))
}

// ask runs the command line tool for a fixture, at the real time.
func ask(s *systemtest.Fixture, args ...string) said {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), s.Patience)
	defer cancel()
	return cli(ctx, time.Now(), append([]string{"--namespace", s.Name}, args...)...)
}

// kubernetes matches the version of the API server, which depends on the tests.
var kubernetes = regexp.MustCompile(`(Kubernetes )v\S+`)

// golden expects that the command line tool prints the content of the file for the recorded objects.
func golden(t *testing.T, file string, code int, args ...string) {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), systemtest.Patience)
	defer cancel()
	answer := cli(ctx, today, args...)
	g.Expect(answer.code).To(Equal(code), "%s%s", answer.out, answer.err)
	path := filepath.Join("testdata", file+".txt")
	text := "$ flux pulumi " + strings.Join(args, " ") + "\n" + kubernetes.ReplaceAllString(answer.out+answer.err, "${1}v1.36.0")
	if *updateDocs {
		g.Expect(os.WriteFile(path, []byte(text), 0o644)).To(Succeed())
	}
	content, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(Equal(string(content)), "run %s, and read what it prints", updateCommand)
}
