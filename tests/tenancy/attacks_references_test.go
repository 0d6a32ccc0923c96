package tenancy_test

import (
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// denied is what a Stack says that names something which the namespace may not use.
var denied = refusal{reasons: []string{pulumiv1.AccessDeniedReason}, says: "another namespace", stalled: true}

// invalid is what a Stack says that can never work.
func invalid(says string) refusal {
	return refusal{reasons: []string{pulumiv1.SpecInvalidReason}, says: says, stalled: true}
}

// secretOfVictim refers to a Secret of the victim.
func secretOfVictim() pulumiv1.ResourceRef {
	return pulumiv1.ResourceRef{
		Type: pulumiv1.ResourceRefSecret, SecretRef: &pulumiv1.SecretSelector{Namespace: victimName, Name: "api", Key: "token"},
	}
}

// referenceAttacks name objects of other namespaces, and kinds that are none of a tenant's business.
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
			spec.DependsOn = []meta.DependencyReference{{Namespace: victimName, Name: victimName, ReadyExpr: `dep.status.outputs.canary.startsWith("o")`}}
		}),
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
			spec.GitAuth = &pulumiv1.GitAuthConfig{PersonalAccessToken: ptr.To(secretOfVictim())}
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
				a.expectRefused(a.numbered(a.newStack(fromProgram(a.name), func(spec *pulumiv1.StackSpec) { spec.EnvRefs["STOLEN"] = ref })), invalid("is not supported any more"))
			}
		},
	},
	{
		name: "directory-outside", promise: "references",
		does: "uses the directory `../../../../var/run/secrets` of a source",
		sees: "`ProjectInvalid` or `ConfigInvalid`: a directory cannot leave the artifact.",
		run: func(a *attacker) {
			a.newWorkspace(func(spec *autov1alpha1.WorkspaceSpec) {
				spec.Stacks = []autov1alpha1.WorkspaceStack{{Name: "dev", Create: ptr.To(true)}}
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
				// It is the program of the Stack that ran, and not what the variables name.
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
