// Package sources_test runs stack-controller with every kind of Flux source, published by source-controller from a real OCI registry and a
// real object store, or by another producer.
package sources_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/canary"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/objectstore"
	"github.com/stack-controller/stack-controller/tests/framework/ociregistry"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// passphraseCanary is the passphrase of every Stack. Nothing that stack-controller writes may contain it.
const passphraseCanary = "passphrase-canary-5d0e"

// passphrase is the content of the Secret with the passphrase.
var passphrase = map[string]string{localsystem.PassphraseKey: passphraseCanary}

// controllerArgs are the flags of every controller in these tests.
var controllerArgs = []string{"--concurrent=8", "--feature-gates=ExternalArtifact=true"}

var (
	system   *localsystem.System
	registry *ociregistry.Registry
	store    *objectstore.Store
)

func TestMain(m *testing.M) {
	suite.LongPackage("each kind of source, from a real server")
	shared := systemtest.Suite{
		Options: localsystem.Options{ControllerArgs: controllerArgs},
		SetUp: func(ctx context.Context, on *localsystem.System) error {
			var registryErr, storeErr error
			system = on
			registry, registryErr = ociregistry.Start(ctx, on.ControlPlane)
			store, storeErr = objectstore.Start(ctx, on.ControlPlane)
			return errors.Join(registryErr, storeErr)
		},
		Leaks: func(ctx context.Context, on *localsystem.System) ([]string, error) {
			return canary.Find(ctx, on, []string{"minio", "crane"}, passphraseCanary, store.SecretKey)
		},
	}
	os.Exit(shared.Run(m))
}

// hourly is an interval that no test waits for, because fetch announces every change.
var hourly = metav1.Duration{Duration: time.Hour}

// fixture is a fixture whose Stack follows a source of the same name.
type fixture struct{ *systemtest.Fixture }

func begin(t *testing.T, name string) *fixture {
	t.Helper()
	t.Parallel()
	return &fixture{systemtest.New(t, system, name, systemtest.Patience)}
}

// follow creates the namespace with the objects, a source of the kind, and a Stack that follows the source.
func (p *fixture) follow(kind string, source client.Object, objects ...client.Object) {
	p.Helper()
	source.SetNamespace(p.Name)
	source.SetName(p.Name)
	p.Enter(passphrase, append(objects, source, system.NewStack(p.Name, p.Name, kind))...)
}

// deployed returns a function that reports whether a Stack is ready at the revision.
func deployed(revision string) func(*pulumiv1.Stack) bool {
	return func(stack *pulumiv1.Stack) bool {
		return statuscheck.Ready("")(stack) && stack.Status.LastAppliedRevision == revision
	}
}

// fetch makes source-controller reconcile the source now, as a Receiver does.
func (p *fixture) fetch(source client.Object) {
	p.Helper()
	before := source.DeepCopyObject().(client.Object)
	annotations := map[string]string{}
	maps.Copy(annotations, source.GetAnnotations())
	annotations[meta.ReconcileRequestAnnotation] = time.Now().Format(time.RFC3339Nano)
	source.SetAnnotations(annotations)
	p.Expect(system.Client.Patch(p.Context(), source, client.MergeFrom(before))).To(Succeed())
}
