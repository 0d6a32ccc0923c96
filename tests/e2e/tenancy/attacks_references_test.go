package tenancy_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/credentials"
	"github.com/stack-controller/stack-controller/internal/outputobject"
)

// denied is the refusal of a Stack that refers to something which its namespace may not use.
var denied = refusal{reasons: []string{pulumiv1.AccessDeniedReason}, says: "another namespace", stalled: true}

// notAKind is the refusal of a Stack that depends on an object of a kind that is not listed, and hidden of one whose expression reads what it
// must not.
var (
	notAKind = refusal{reasons: []string{pulumiv1.AccessDeniedReason}, says: "are not allowed as dependencies", stalled: true}
	hidden   = refusal{reasons: []string{pulumiv1.InvalidCELExpressionReason}, says: "is not a field that it may read", stalled: true}
)

// invalid returns the refusal of a Stack that can never work.
func invalid(says string) refusal {
	return refusal{reasons: []string{pulumiv1.SpecInvalidReason}, says: says, stalled: true}
}

// secretOfVictim refers to a Secret of the victim.
func secretOfVictim() pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{
		Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Namespace: victimName, Name: "api", Key: "token"},
	}
}

// referenceAttacks refer to objects of other namespaces, and to kinds that a tenant must not use as a source.
var referenceAttacks = []attack{
	{
		name: "source-of-other-namespace", promise: "references",
		does: "refers to the victim's GitRepository with `sourceRef.namespace`",
		sees: "`AccessDenied`, Stalled",
		run:  refused(denied, fromFlux(sourcev1.GitRepositoryKind, victimName, victimName)),
	},
	{
		name: "dependency-of-other-namespace", promise: "references",
		does: "refers to the victim's Stack in `dependsOn`, with a `readyExpr` that reads its outputs",
		sees: "`AccessDenied`, Stalled: the expression is not evaluated.",
		run: refusedProgram(denied, func(spec *pulumiv1.StackSpec) {
			spec.DependsOn = []pulumiv1.DependencyReference{{Namespace: victimName, Name: victimName, ReadyExpr: `dep.status.outputs.canary.startsWith("o")`}}
		}),
	},
	{
		name: "dependency-reads-foreign-kind", promise: "references",
		does: "names in `dependsOn` the victim's Program and Secret, kinds that are not listed, and an object of their own whose hidden fields " +
			"a `readyExpr` compares with a guess",
		sees: "`AccessDenied`, `InvalidCELExpression`, Stalled: no such object is read, and no such field; `DependencyNotReady` if the expression hides which field it reads.",
		run: func(a *attacker) {
			a.newProgram()
			program := pulumiv1.DependencyReference{APIVersion: pulumiv1.GroupVersion.String(), Kind: pulumiv1.ProgramKind, Name: a.name}
			for _, test := range []struct {
				change func(*pulumiv1.DependencyReference)
				refusal
			}{
				{func(r *pulumiv1.DependencyReference) { r.Namespace, r.Name = victimName, victimName }, denied},
				{func(r *pulumiv1.DependencyReference) { r.Namespace, r.Name = victimName, "none" }, denied}, // in the same words
				{func(r *pulumiv1.DependencyReference) { r.APIVersion, r.Kind, r.Name = "v1", "Secret", tenantAccount }, notAKind},
				{func(r *pulumiv1.DependencyReference) {
					r.APIVersion, r.Kind = "rbac.authorization.k8s.io/v1", "RoleBinding"
				}, notAKind},
				{func(r *pulumiv1.DependencyReference) { r.APIVersion, r.Kind = "apps/v1", "StatefulSet" }, notAKind},
				{func(r *pulumiv1.DependencyReference) { r.ReadyExpr = "has(dep.spec)" }, hidden},
				{func(r *pulumiv1.DependencyReference) { r.ReadyExpr = "dep.status.artifact.url.startsWith('h')" }, hidden},
				{func(r *pulumiv1.DependencyReference) { r.ReadyExpr = "dep.metadata.annotations.a == 'a'" }, hidden},
			} {
				reference := program
				test.change(&reference)
				a.expectRefused(a.numbered(a.newStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) {
					spec.DependsOn = []pulumiv1.DependencyReference{reference}
				})), test.refusal)
			}
			// An expression that gets past the check of its fields finds nothing.
			for _, guess := range []string{"[dep][0].program.outputs.x == 1", "dep.status.conditions.exists(c, c.message.contains('a'))"} {
				reference := program
				reference.ReadyExpr = guess
				a.expectRefused(a.numbered(a.newStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) {
					spec.DependsOn = []pulumiv1.DependencyReference{reference}
				})), refusal{reasons: []string{pulumiv1.DependencyNotReadyReason}, says: "cannot be evaluated"})
			}
		},
	},
	{
		name: "output-of-other-namespace", promise: "references",
		does: "takes an output of the victim's Stack in `spec.inputs`, and guesses the names of others",
		sees: "`AccessDenied`, Stalled: the refusal is the same for what exists and what does not.",
		run: func(a *attacker) {
			a.newProgram()
			input := autov1alpha1.Input{Key: "stolen", Stack: &autov1alpha1.StackOutput{Namespace: victimName, Name: victimName, Output: "canary"}}
			stack := a.createStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) { spec.Inputs = []autov1alpha1.Input{input} })
			a.expectRefused(stack, denied)
			refusal := conditions.GetMessage(stack, meta.ReadyCondition)
			before := stack.DeepCopy()
			stack.Spec.Inputs[0].Stack.Name = "gone"
			a.Expect(a.client.Patch(a.ctx, stack, client.MergeFrom(before))).To(Succeed())
			a.eventually(func(g Gomega) {
				g.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(stack), stack)).To(Succeed())
				g.Expect(conditions.GetMessage(stack, meta.ReadyCondition)).To(Equal(strings.Replace(refusal, "/"+victimName, "/gone", 1)))
			})
		},
	},
	{
		name: "secret-of-other-namespace", promise: "references",
		does: "refers to the victim's Secret in `envRefs`, with its namespace",
		sees: "`SpecInvalid`, Stalled",
		run: refusedProgram(invalid("is in another namespace, which is not allowed"), func(spec *pulumiv1.StackSpec) {
			spec.EnvRefs["STOLEN"] = secretOfVictim()
		}),
	},
	{
		name: "config-secret-of-other-namespace", promise: "references",
		does: "refers to the victim's Secret in `secretsRef`, with its namespace",
		sees: "`SpecInvalid`, Stalled",
		run: refusedProgram(invalid("another namespace"), func(spec *pulumiv1.StackSpec) {
			spec.SecretRefs = map[string]pulumiv1.ResourceRef{"stolen": secretOfVictim()}
		}),
	},
	{
		name: "git-secret-of-other-namespace", promise: "references",
		does: "uses the victim's Secret as the credentials for their own git server",
		sees: "`SpecInvalid`, Stalled: no credentials are sent.",
		run: refused(invalid("has to be in the namespace of the Stack"), fromGit("http://"+webHost+"/page/x.git"), func(spec *pulumiv1.StackSpec) {
			spec.GitAuth = &pulumiv1.GitAuthConfig{PersonalAccessToken: new(secretOfVictim())}
		}),
	},
	{
		name: "names-with-a-path", promise: "references",
		does: "refers to the victim's objects with `../victim/victim` instead of a name",
		sees: "`SourceNotFound`: a name is never used as a path.",
		run: func(a *attacker) {
			for _, source := range []func(*pulumiv1.StackSpec){
				fromProgram("../" + victimName + "/" + victimName),
				fromFlux(sourcev1.GitRepositoryKind, "", "../"+victimName+"/gitrepositories/"+victimName),
			} {
				a.expectRefused(a.numbered(a.newStack(source)), refusal{reasons: []string{pulumiv1.SourceNotFoundReason}, says: "does not exist"})
			}
		},
	},
	{
		name: "secret-as-source", promise: "references",
		does: "uses a Secret, a ConfigMap, a Stack and a StatefulSet as sources, to make the controller read them",
		sees: "`SpecInvalid`, Stalled",
		run: func(a *attacker) {
			for _, kind := range [][2]string{{"v1", "Secret"}, {"v1", "ConfigMap"}, {"pulumi.com/v1", "Stack"}, {"apps/v1", "StatefulSet"}} {
				stack := a.newStack(fromFlux(kind[1], "", "x"))
				stack.Spec.FluxSource.SourceRef.APIVersion = kind[0]
				a.expectRefused(a.numbered(stack), invalid("publishes no artifact"))
			}
		},
	},
	{
		name: "files-of-the-controller", promise: "references",
		does: "refers to files and environment variables of the controller in `envRefs`, with the types `FS` and `Env`",
		sees: "`SpecInvalid`, Stalled",
		run: func(a *attacker) {
			a.newProgram()
			for _, ref := range []pulumiv1.ResourceRef{
				{Type: pulumiv1.ResourceRefFS, FileSystem: &pulumiv1.FSSelector{Path: "/var/run/secrets/kubernetes.io/serviceaccount/token"}},
				{Type: pulumiv1.ResourceRefEnv, Env: &pulumiv1.EnvSelector{Name: "KUBERNETES_SERVICE_HOST"}},
			} {
				a.expectRefused(a.numbered(a.newStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) { spec.EnvRefs["STOLEN"] = ref })), invalid("is no longer supported"))
			}
		},
	},
	{
		name: "directory-outside", promise: "references",
		does: "uses the directory `../../../../var/run/secrets` of a source",
		sees: "`ProjectInvalid` or `ConfigInvalid`: a directory cannot leave the artifact.",
		run: func(a *attacker) {
			a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) {
				spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Create: new(true)}}
			})
			program := a.newProgram()
			await(a, program, func(g Gomega, program *pulumiv1.Program) { g.Expect(program.GetArtifact()).NotTo(BeNil()) })
			message := a.expectUpdateRefused(a.newUpdate(&autov1alpha1.UpdateSource{
				Program: &autov1alpha1.ProgramSource{Name: a.name}, Digest: program.GetArtifact().Digest, Dir: "../../../../var/run/secrets",
			}), autov1alpha1.ProjectInvalidReason, autov1alpha1.ConfigInvalidReason)
			a.Expect(message).To(ContainSubstring("is outside of the"))
		},
	},
	{
		name: "variables-of-pulumi", promise: "references",
		does: "sets `PULUMI_OPTION_*`, `GIT_SSH_COMMAND` and `LD_PRELOAD`, to redirect the Pulumi CLI and load a library",
		sees: "`ProcessingCompleted`: variables that would redirect Pulumi are ignored, and the others only affect the pod of the attacker.",
		run: func(a *attacker) {
			a.newProgram()
			stack := a.createStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) {
				for _, name := range []string{"PULUMI_OPTION_CWD", "PULUMI_OPTION_STACK", "GIT_SSH_COMMAND", "LD_PRELOAD"} {
					spec.EnvRefs[name] = literal("/tmp/evil")
				}
			})
			await(a, stack, func(g Gomega, stack *pulumiv1.Stack) {
				g.Expect(stack.Status.LastUpdate).NotTo(BeNil(), "%+v", stack.Status)
				g.Expect(stack.Status.LastUpdate.State).To(Equal(pulumiv1.StackUpdateSucceeded), "%+v", stack.Status.Conditions)
				// The outputs are those of the Stack's own program, not of something that the variables name.
				g.Expect(string(stack.Status.Outputs["x"].Raw)).To(Equal("1"))
				g.Expect(apimeta.FindStatusCondition(stack.Status.Conditions, meta.ReadyCondition).Reason).To(Equal(pulumiv1.ProcessingCompletedReason))
			})
			a.saw(pulumiv1.ProcessingCompletedReason)
		},
	},
	{
		name: "token-of-the-controller", promise: "agents",
		does: "requests a token of the controller's service account",
		sees: "`Forbidden`: the API server rejects the request.",
		run: func(a *attacker) {
			pod := runningController(a.ctx, a.WithT)
			a.expectForbidden(a.client.SubResource("token").Create(a.ctx,
				&corev1.ServiceAccount{ObjectMeta: inNamespace(pod.Namespace, pod.Spec.ServiceAccountName)}, tokenRequest("any")))
		},
	},
}

// nameAttacks occupy names that the controller needs, and refer to objects of others.
var nameAttacks = []attack{
	{
		name: "statefulset-in-the-way", promise: "names",
		does: "creates a StatefulSet with the name that the workspace of their Stack needs",
		sees: "`NameConflict`: the controller does not change objects that it did not create.",
		run: func(a *attacker) {
			set := &appsv1.StatefulSet{ObjectMeta: inNamespace(attackerName, a.name+"-workspace"), Spec: appsv1.StatefulSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": a.name}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": a.name}}, Spec: a.means.Pod("x", "web", ":8080").Spec},
			}}
			set.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
			a.create(set)
			a.expectNameConflict()
			after := &appsv1.StatefulSet{}
			a.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(set), after)).To(Succeed())
			a.Expect(after.Generation).To(Equal(set.Generation))
		},
	},
	{
		name: "secret-in-the-way", promise: "names",
		does: "creates the Secret for the key pair of their agent, with another key",
		sees: "`NameConflict`: the controller does not trust objects that it did not create.",
		run: func(a *attacker) {
			pair, err := credentials.NewKeyPair()
			a.Expect(err).NotTo(HaveOccurred())
			a.create(&corev1.Secret{ObjectMeta: inNamespace(attackerName, a.name+"-workspace-rpc"), Type: corev1.SecretTypeTLS, Data: pair})
			a.expectNameConflict()
		},
	},
	{
		name: "outputs-over-foreign-secret", promise: "names",
		does: "names the key pair of their agent in `spec.outputs`, and grants the right to write it",
		sees: "`OutputsConflict`, Stalled: the controller does not change objects that it did not create for these outputs.",
		run: func(a *attacker) {
			a.newProgram()
			stack := a.newStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) {
				spec.Outputs = []pulumiv1.OutputObject{{Name: a.name + "-workspace-rpc"}}
			})
			pod := runningController(a.ctx, a.WithT)
			role, binding := outputobject.Grant(stack, outputobject.Names(stack),
				rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName})
			a.create(role)
			a.create(binding)
			a.create(stack)
			conflict := refusal{reasons: []string{pulumiv1.OutputsConflictReason}, says: "belongs to Workspace", stalled: true}
			a.expectState(stack, conflict) // the program runs, and only its outputs are not written
			after := &corev1.Secret{ObjectMeta: inNamespace(stack.Namespace, a.name+"-workspace-rpc")}
			a.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(after), after)).To(Succeed())
			a.Expect(after.Data).NotTo(HaveKey("x"))
			a.Expect(after.Labels).NotTo(HaveKey(pulumiv1.StackUIDLabel))
		},
	},
	{
		name: "workspace-in-the-way", promise: "names",
		does: "creates a Workspace with the name of their Stack, without an owner, and with its own program and credentials",
		sees: "`WorkspaceFailed`, Stalled: the Stack does not own the Workspace, and does not change it.",
		run: func(a *attacker) {
			workspace := a.newWorkspace()
			a.newProgram()
			a.expectRefused(a.createStack(fromProgram(a.name)), refusal{
				reasons: []string{pulumiv1.WorkspaceFailedReason}, says: a.name, stalled: true,
			})
			after := &autov1alpha1.Workspace{}
			a.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(workspace), after)).To(Succeed())
			a.Expect(after.Generation).To(Equal(workspace.Generation))
		},
	},
	{
		name: "names-that-are-shortened", promise: "names",
		does: "gives a Workspace the name that a longer name has after it is shortened",
		sees: "`ownerReferences`: both have their own objects. A name that looks like a shortened name gets its own hash.",
		run: func(a *attacker) {
			long := &autov1alpha1.Workspace{ObjectMeta: inNamespace(attackerName, strings.Repeat("long-", 12)+"name")}
			a.create(long)
			set := &appsv1.StatefulSetList{}
			a.eventually(func(g Gomega) {
				g.Expect(a.client.List(a.ctx, set, client.InNamespace(attackerName))).To(Succeed())
				g.Expect(setsOf(set, long.UID)).To(HaveLen(1))
			})
			first := setsOf(set, long.UID)[0]
			short := &autov1alpha1.Workspace{ObjectMeta: inNamespace(attackerName, strings.TrimSuffix(first, "-workspace"))}
			a.create(short)
			a.eventually(func(g Gomega) {
				g.Expect(a.client.List(a.ctx, set, client.InNamespace(attackerName))).To(Succeed())
				g.Expect(setsOf(set, short.UID)).To(And(HaveLen(1), Not(ContainElement(first))))
				g.Expect(setsOf(set, long.UID)).To(ConsistOf(first))
			})
			a.saw("ownerReferences")
		},
	},
	{
		name: "owner-in-other-namespace", promise: "names",
		does: "makes the victim's Stack the owner of an Update",
		sees: "The API server rejects the request. Even if an administrator creates the Update, `NotFound` or `WorkspaceNotFound`: an owner in another namespace does not count, and the garbage collector deletes the Update.",
		run: func(a *attacker) {
			stack := &pulumiv1.Stack{}
			a.Expect(system.Client.Get(a.ctx, a.victim.app.Key(), stack)).To(Succeed())
			owners := []metav1.OwnerReference{*metav1.NewControllerRef(stack, pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))}
			update := &autov1alpha1.Update{ObjectMeta: a.meta(), Spec: autov1alpha1.UpdateSpec{
				WorkspaceName: victimName, StackName: "dev", Type: autov1alpha1.UpdateTypeDestroy,
			}}
			update.OwnerReferences = owners
			update.Labels = map[string]string{pulumiv1.StackNameLabel: victimName, pulumiv1.ComponentLabel: pulumiv1.ComponentStack}
			a.Expect(apierrors.IsForbidden(a.client.Create(a.ctx, update.DeepCopy()))).To(BeTrue())
			a.Expect(system.Client.Create(a.ctx, update)).To(Succeed())
			reason := ""
			a.eventually(func(g Gomega) {
				err := a.client.Get(a.ctx, client.ObjectKeyFromObject(update), update)
				g.Expect(client.IgnoreNotFound(err)).To(Succeed())
				if err != nil {
					reason = string(metav1.StatusReasonNotFound)
					return
				}
				progressing := apimeta.FindStatusCondition(update.Status.Conditions, autov1alpha1.UpdateProgressing)
				g.Expect(progressing).NotTo(BeNil())
				g.Expect(progressing.Reason).To(Equal(autov1alpha1.UpdateWorkspaceNotFoundReason))
				reason = progressing.Reason
			})
			a.saw(reason)
			a.Expect(update.Status.State).To(BeEmpty())
		},
	},
	{
		name: "forged-labels", promise: "names",
		does: "creates a pod and a Service with the labels and annotations of the victim's Workspace",
		sees: "They get no `ownerReferences`, and the Workspace of the victim does not change: labels select objects, but only owners count.",
		run: func(a *attacker) {
			labels := map[string]string{
				autov1alpha1.ComponentLabel: autov1alpha1.ComponentWorkspace, autov1alpha1.WorkspaceNameLabel: victimName,
				"app.kubernetes.io/managed-by": "stack-controller",
			}
			pod := a.means.Pod(victimName+"-workspace-0", "web", ":8080")
			service := &corev1.Service{ObjectMeta: inNamespace(attackerName, victimName+"-workspace"), Spec: corev1.ServiceSpec{
				Selector: labels, Ports: []corev1.ServicePort{{Port: 50051}},
			}}
			for _, object := range []client.Object{pod, service} {
				object.SetLabels(labels)
				object.SetAnnotations(map[string]string{autov1alpha1.WorkspaceNameLabel: victimName, "auto.pulumi.com/applied-hash": "x"})
				a.create(object)
			}
			check := func(g Gomega) {
				for _, object := range []client.Object{&corev1.Pod{ObjectMeta: pod.ObjectMeta}, &corev1.Service{ObjectMeta: service.ObjectMeta}} {
					uid := object.GetUID()
					g.Expect(a.client.Get(a.ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
					g.Expect(object.GetUID()).To(Equal(uid))
					g.Expect(object.GetOwnerReferences()).To(BeEmpty())
				}
			}
			a.Consistently(check).WithContext(a.ctx).WithTimeout(quietTime).WithPolling(quietTime / 3).Should(Succeed())
			a.saw("ownerReferences")
			a.victim.expectUnharmed(a.ctx, a.WithT)
		},
	},
	{
		name: "rights-in-other-namespace", promise: "references",
		does: "binds roles and creates objects in the victim's namespace",
		sees: "`Forbidden`",
		run: func(a *attacker) {
			for _, object := range []client.Object{
				&rbacv1.RoleBinding{ObjectMeta: inNamespace(victimName, a.name), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"}},
				&pulumiv1.Stack{ObjectMeta: inNamespace(victimName, a.name)},
				&autov1alpha1.Update{ObjectMeta: inNamespace(victimName, a.name), Spec: autov1alpha1.UpdateSpec{
					WorkspaceName: victimName, StackName: "dev", Type: autov1alpha1.UpdateTypeDestroy,
				}},
				&corev1.Secret{ObjectMeta: inNamespace(victimName, victimName+"-workspace-rpc")},
			} {
				a.expectForbidden(a.client.Create(a.ctx, object))
			}
		},
	},
	{
		name: "finalizer-of-its-own", promise: "fairness", in: crowdName,
		does: "deletes Stacks that have a finalizer of the attacker",
		sees: "`deletionTimestamp`: the Stacks stay, without the finalizer of the controller. Other tenants are not affected.",
		run: func(a *attacker) {
			const finalizer = "example.com/never"
			var stacks []*pulumiv1.Stack
			for i := range 20 {
				stack := a.newStack(fromProgram("none"))
				stack.Name += fmt.Sprint("-", i)
				stack.Finalizers = []string{finalizer}
				a.create(stack)
				a.Expect(a.client.Delete(a.ctx, stack)).To(Succeed())
				stacks = append(stacks, stack)
			}
			for _, stack := range stacks {
				await(a, stack, func(g Gomega, stack *pulumiv1.Stack) {
					g.Expect(stack.DeletionTimestamp).NotTo(BeNil())
					g.Expect(stack.Finalizers).To(ConsistOf(finalizer))
				})
			}
			a.saw("deletionTimestamp")
		},
	},
}

// setsOf returns the names of the StatefulSets with the owner.
func setsOf(list *appsv1.StatefulSetList, owner any) (names []string) {
	for _, set := range list.Items {
		for _, reference := range set.OwnerReferences {
			if reference.UID == owner {
				names = append(names, set.Name)
			}
		}
	}
	return names
}

// expectNameConflict creates a Workspace with the name of the attack, and waits until it reports that the name of one of its objects is
// taken.
func (a *attacker) expectNameConflict() {
	a.t.Helper()
	workspace := a.newWorkspace()
	check := func(g Gomega, workspace *autov1alpha1.Workspace) {
		ready := apimeta.FindStatusCondition(workspace.Status.Conditions, meta.ReadyCondition)
		g.Expect(ready).NotTo(BeNil())
		g.Expect(ready.Reason).To(Equal(autov1alpha1.NameConflictReason), ready.Message)
		g.Expect(ready.Message).To(ContainSubstring(a.name + "-workspace"))
	}
	await(a, workspace, check)
	a.saw(autov1alpha1.NameConflictReason)
}
