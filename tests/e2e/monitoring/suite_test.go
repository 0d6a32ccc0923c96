// Package monitoring_test runs a real Prometheus that scrapes the real controller while Stacks change. It runs the queries of the
// dashboards and the alerts of config/monitoring on it.
package monitoring_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
	"github.com/stack-controller/stack-controller/tests/tools"
)

const (
	// patience bounds each wait after the first start of Prometheus, which may be slow.
	patience     = 60 * time.Second
	pollInterval = 200 * time.Millisecond
)

// commits is the number of commits after the first one of the Stack that succeeds.
const commits = 3

// The Stacks, in namespaces of the same names: one succeeds, and the program of the other fails.
const (
	healthy = "healthy"
	broken  = "broken"
)

var (
	system *localsystem.System
	// observed is the Prometheus that scrapes the system.
	observed *prometheus
)

func TestMain(m *testing.M) {
	if suite.Short() {
		os.Exit(m.Run()) // the tests that remain need no system
	}
	shared := systemtest.Suite{
		Options: localsystem.Options{ControllerArgs: []string{"--enable-leader-election", "--leader-election-retry-period=500ms", "--max-operations=1"}},
		SetUp: func(ctx context.Context, on *localsystem.System) (err error) {
			system = on
			if err := on.AllowElection(ctx); err != nil {
				return err
			}
			objects, err := serveObjects(on.Client)
			if err != nil {
				return err
			}
			if observed, err = startPrometheus(ctx, on, objects); err != nil {
				return err
			}
			return keepBusy(ctx, on)
		},
	}
	os.Exit(shared.Run(m))
}

// keepBusy deploys two Stacks. One of them is updated several times, the other one fails.
func keepBusy(ctx context.Context, on *localsystem.System) error {
	app, err := on.Deploy(ctx, healthy, systemtest.Returning(healthy, 0))
	if err != nil {
		return err
	}
	if _, err := on.Deploy(ctx, broken, failing); err != nil {
		return err
	}
	program := &pulumiv1.Program{Namespace: healthy, Name: healthy}
	program.Program.Outputs = map[string]apiextensionsv1.JSON{"x": {Raw: []byte("1")}}
	if err := on.Client.Create(ctx, program); err != nil {
		return fmt.Errorf("create a program: %w", err)
	}
	if _, err := on.WaitReady(ctx, app); err != nil {
		return err
	}
	for i := range commits {
		if _, err := on.Rollout(ctx, app, systemtest.Returning(healthy, i+1)); err != nil {
			return err
		}
	}
	return nil
}

// awaitFailure waits until the broken Stack has failed.
func awaitFailure(t *testing.T) {
	t.Helper()
	s := systemtest.New(t, system, broken, patience)
	s.Await(func(stack *pulumiv1.Stack) bool {
		return stack.Status.LastUpdate != nil && stack.Status.LastUpdate.State == pulumiv1.StackUpdateFailed
	})
}

// failing is a program that fails.
var failing = gitserver.Files{"Pulumi.yaml": "name: broken\nruntime: yaml\noutputs: {x: \"${missing}\"}\n"}

// haltRollout creates a StackRollout whose only Stack fails, and waits until it is halted. It returns a function that removes both.
func haltRollout(t *testing.T) (remove func()) {
	t.Helper()
	g := NewWithT(t)
	s := systemtest.New(t, system, "halted", patience)
	app, stack, err := system.Provide(t.Context(), s.Name, failing)
	g.Expect(err).NotTo(HaveOccurred())
	stack.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "fleet"}
	rollout := &autov1alpha1.StackRollout{ObjectMeta: s.Meta("fleet"), Spec: autov1alpha1.StackRolloutSpec{
		SourceRef: autov1alpha1.RolloutSource{Kind: sourcev1.GitRepositoryKind, Name: app.Name}, Waves: []autov1alpha1.RolloutWave{{Name: "all"}},
	}}
	s.Create(rollout, stack)
	eventually(g, func() string { s.Get("fleet", rollout); return conditions.GetReason(rollout, meta.ReadyCondition) }).
		Should(Equal(autov1alpha1.RolloutHaltedReason))
	return func() {
		g.Expect(system.Client.Delete(t.Context(), rollout)).To(Succeed())
		s.Delete()
		s.AwaitGone()
	}
}

// inRepository returns the path of a file in the repository.
func inRepository(path ...string) string {
	return filepath.Join(append([]string{tools.RepositoryRoot()}, path...)...)
}

// ruleGroups returns the groups of the PrometheusRule after change has changed each rule.
func ruleGroups(change func(rule map[string]any)) ([]byte, error) {
	content, err := os.ReadFile(inRepository("config", "monitoring", "prometheus_rule.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the alerts: %w", err)
	}
	var object struct {
		Spec struct {
			Groups []struct {
				Name  string           `json:"name"`
				Rules []map[string]any `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(content, &object); err != nil {
		return nil, fmt.Errorf("read the alerts: %w", err)
	}
	for _, group := range object.Spec.Groups {
		for _, rule := range group.Rules {
			change(rule)
		}
	}
	return yaml.Marshal(object.Spec)
}

// eventually is Eventually with the timeout and polling interval of this package.
func eventually(g *WithT, actual any) AsyncAssertion {
	return g.Eventually(actual).WithTimeout(patience).WithPolling(pollInterval)
}
